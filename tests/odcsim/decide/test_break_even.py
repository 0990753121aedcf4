"""Where on-demand stops paying: curves that agree with a comparison, and crossings that lie between both answers."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import odcsim
from odcsim import Trace
from odcsim.decide import break_even
from odcsim.decide.asking import setting_of
from odcsim.decide.break_even import MINIBATCHES, curves, cv, lead, varied
from odcsim.decide.weights import WEIGHTS, regrets
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
    return {curve.name: curve for curve in curves(ASKED)}


def test_a_faster_network_never_hurts_on_demand(made):
    leads = made["network"].leads
    assert all(b >= a - 0.01 for a, b in pairwise(leads))
    assert leads[0] < 1 < leads[-1]


@pytest.mark.parametrize("power", break_even.POWERS)
def test_varied_lengths_keep_their_mean_and_stretch(power):
    other = varied(LONG, power)
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
