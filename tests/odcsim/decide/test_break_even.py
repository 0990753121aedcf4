"""Where on-demand stops paying: curves that agree with a comparison, and crossings that lie between both answers."""

from dataclasses import replace
from itertools import pairwise
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import odcsim
from odcsim import Trace
from odcsim.cost import Cost
from odcsim.decide import break_even
from odcsim.decide.asking import setting_of
from odcsim.decide.break_even import (
    MINIBATCHES,
    WEIGHTS,
    Curve,
    Spot,
    cv,
    factors,
    find_break_even,
    lead,
    regrets,
    stretch,
)
from odcsim.question import Question
from odcsim.recipe import Recipe

LENGTHS = np.minimum(np.random.default_rng(3).lognormal(8.7, 0.9, 1500), 32768).astype(np.int64) + 1
LONG = Trace("long", LENGTHS)
ASKED = Question(
    trace=LONG, model="qwen2.5-1.5b", gpu="a100", devices=16, minibatch=4, max_tokens=32769, minibatches=MINIBATCHES,
    recipe=Recipe(sharding="full"),
)  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return {curve.name: curve for curve in find_break_even(ASKED).curves}


def test_a_faster_network_never_hurts_on_demand(made):
    leads = made["network"].leads
    assert all(b >= a - 0.01 for a, b in pairwise(leads))
    assert leads[0] < 1 < leads[-1]


@pytest.mark.parametrize("power", break_even.POWERS)
def test_varied_lengths_keep_their_mean_and_stretch(power):
    other = stretch(LONG, power)
    assert other.mean == pytest.approx(LONG.mean, rel=0.03)
    assert (cv(other) - cv(LONG)) * (power - 1) >= -1e-6


def test_wrong_weights_cost_time_and_right_ones_do_not(monkeypatch):
    """And plans by wrong ones are told no true seconds, which who simulates both of a balancer's deals knows."""
    told = []
    monkeypatch.setattr("odcsim.decide.setting.sooner", lambda _cost, rivals, _schedules: told.extend(rivals) or [])
    wrong = {r.name: r.times for r in regrets(setting_of(ASKED))}
    assert told == []
    assert set(wrong) == set(WEIGHTS)
    assert wrong["tokens alone"]["on-demand"] > 1.005
    assert wrong["squares of lengths alone"]["on-demand"] > 1.005
    assert min(min(times.values()) for times in wrong.values()) > 0.98


def test_lengths_that_do_not_vary_do_not_pay_and_links_may_be_shared(made, tmp_path):
    first = made["length variation"].spots[0]
    assert float(first.label) == 0
    assert first.lead < break_even.NOTABLE
    (tmp_path / "cluster.toml").write_text("devices_per_node = 2\nnics_per_node = 1\n")
    asked = {"gpu": "a100", "devices": 4, "minibatch": 2, "cluster": str(tmp_path / "cluster.toml")}
    assert odcsim.break_even("lognormal:median=700,sigma=0.9,max=4096,samples=200", "tiny", **asked).regrets


def test_at_a_crossing_the_answer_changes(made):
    [at] = made["network"].crossings
    usual = setting_of(ASKED)

    def with_network(rate):
        cluster = replace(usual.cost.cluster, nic_bandwidth=rate * 1e9 / 8)
        return lead(replace(usual, cost=replace(usual.cost, cluster=cluster)))

    assert with_network(at / 1.3) < break_even.NOTABLE < with_network(at * 1.3)


HAS = {
    "devices": lambda setting: setting.cost.cluster.gpus,
    "model size": lambda setting: setting.cost.model.parameters / 1e9,
    "minibatch": lambda setting: setting.minibatch,
    "length variation": lambda setting: cv(setting.trace),
    "network": lambda setting: round(setting.cost.cluster.nic_bandwidth * 8 / 1e9),
    "fixed cost of a microbatch": lambda setting: setting.cost.profile.overhead + setting.cost.profile.microbatch,
}


def test_where_one_thing_is_changed_the_question_has_that_value_however_its_batch_was_asked_for():
    asked = replace(ASKED, minibatch=None, global_batch=64)
    usual = setting_of(asked, limited=False)
    profile = replace(usual.cost.profile, overhead=0.004, microbatch=0.006)
    usual = replace(usual, cost=replace(usual.cost, profile=profile))
    every = factors(asked, usual)
    assert {factor.name for factor in every} == {*HAS}
    for factor in every:
        has = HAS[factor.name]
        assert has(usual) == pytest.approx(factor.here)
        for value, other in factor.values:
            cost = isinstance(other, Cost)
            if factor.name != "devices" or not 64 % value:  # samples of a batch that divide
                setting = replace(usual, cost=other) if cost else setting_of(replace(asked, **other), limited=False)
                assert has(setting) == pytest.approx(value)


@given(st.lists(st.none() | st.floats(0.5, 2), min_size=1, max_size=8), st.booleans())
def test_at_each_crossing_the_lead_passes_what_pays_on_a_line_between_two_neighbours(leads, whole):
    """Where there is nothing between them, it is the one that pays. Over the logarithm, but from zero on."""
    curve = Curve("a", "", "", tuple(Spot(float(i), f"{i}", lead) for i, lead in enumerate(leads)), whole)
    known = [spot for spot in curve.spots if spot.lead is not None]
    both = [(a, b) for a, b in pairwise(known) if len({spot.lead >= break_even.NOTABLE for spot in (a, b)}) == 2]
    assert len(curve.crossings) == len(both)
    for at, (a, b) in zip(curve.crossings, both, strict=True):
        share = log(at / a.value) / log(b.value / a.value) if a.value else at / b.value
        lead_there = a.lead + share * (b.lead - a.lead)
        assert lead_there == pytest.approx(max(a.lead, b.lead) if whole else break_even.NOTABLE)
