"""Where on-demand stops paying: curves that agree with a comparison, and crossings that lie between both answers."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from odcsim import Trace
from odcsim.cli import main
from odcsim.decide import break_even, break_even_words
from odcsim.decide.asking import setting_of
from odcsim.decide.break_even import MINIBATCHES, Curve, Spot, curves, cv, lead, varied
from odcsim.decide.comparison import compare
from odcsim.decide.weights import WEIGHTS, regrets
from odcsim.question import Question
from odcsim.recipe import Recipe

LENGTHS = np.minimum(np.random.default_rng(3).lognormal(8.7, 0.9, 1500), 32768).astype(np.int64) + 1
LONG = Trace("long", LENGTHS)
ASKED = Question(
    trace=LONG,
    model="qwen2.5-1.5b",
    gpu="a100",
    devices=16,
    minibatch=4,
    max_tokens=32769,
    minibatches=MINIBATCHES,
    recipe=Recipe(sharding="full"),
)


@pytest.fixture(scope="module")
def made():
    return {curve.name: curve for curve in curves(ASKED)}


def test_a_lead_is_what_a_comparison_says():
    setting = setting_of(ASKED)
    rows = compare(setting).rows

    def fastest(sync):
        names = break_even.balancers(sync)
        return min(r.makespan_seconds for r in rows if r.sync == sync and r.balancer in names)

    without, mine = fastest("collective"), fastest("on-demand")
    assert lead(setting) == pytest.approx(without / mine)


def test_every_curve_passes_the_question_itself(made):
    here = lead(setting_of(ASKED))
    for curve in made.values():
        if curve.name != "length variation":  # whose middle is rounded lengths
            assert next(s.lead for s in curve.spots if s.label == curve.here) == pytest.approx(here)


def test_a_faster_network_never_hurts_on_demand(made):
    leads = made["network"].leads
    assert all(b >= a - 0.01 for a, b in pairwise(leads))
    assert leads[0] < 1 < leads[-1]


def test_at_a_crossing_the_answer_changes(made):
    [at] = made["network"].crossings
    usual = setting_of(ASKED)

    def with_network(rate):
        cluster = replace(usual.cost.cluster, nic_bandwidth=rate * 1e9 / 8)
        return lead(replace(usual, cost=replace(usual.cost, cluster=cluster)))

    assert with_network(at / 1.3) < break_even.NOTABLE < with_network(at * 1.3)


def test_alike_samples_bring_nothing(made):
    first = made["length variation"].spots[0]
    assert float(first.label) == 0
    assert first.lead < break_even.NOTABLE


@pytest.mark.parametrize("power", break_even.POWERS)
def test_varied_lengths_keep_their_mean_and_stretch(power):
    other = varied(LONG, power)
    assert other.mean == pytest.approx(LONG.mean, rel=0.03)
    assert (cv(other) - cv(LONG)) * (power - 1) >= -1e-6


def test_words_follow_the_curve():
    def said(*leads, whole=False):
        spots = tuple(Spot(float(10 * 2**i), f"{10 * 2**i}", x) for i, x in enumerate(leads))
        return break_even_words.sentence(Curve("network", "Gb/s", "20", spots, whole))

    assert said(0.9, 0.95, None) == "It pays at none (at most 0.95)."
    assert said(0.9, 1.0187, None) == "It pays at none (at most 1.019)."  # and not 1.02, from which it pays
    assert said(1.1, 1.2) == "It pays at all of these (1.10 and more)."
    assert said(0.92, 1.12) == "It pays from about 14 Gb/s; here it is 20."
    assert said(0.92, 1.12, 1.2, 1.0, whole=True) == "It pays from 20 Gb/s and up to 40 Gb/s; here it is 20."
    assert said(None) == "None of these fits in memory, or none can be drawn."


def told(name, *leads, at=0, whole=False):
    spots = tuple(Spot(float(10 * 2**i), f"{10 * 2**i}", x) for i, x in enumerate(leads))
    return Curve(name, "", spots[at].label, spots, whole)


def test_the_answer_is_of_what_is_asked_and_names_what_it_hangs_on():
    devices, size = told("devices", 1.1, 1.2, whole=True), told("model size", 1.1, 1.15)
    network = told("network", 0.9, 1.1, at=1)
    assert break_even_words.answer([network, devices, size]) == (
        "On-demand pays here: it is 1.10 times as fast as the best without it. "
        "This depends on network (it pays from about 15; here it is 20); not on devices or model size."
    )
    small = told("devices", 0.99, 1.0, whole=True)
    assert break_even_words.answer([small, told("network", 0.99, 1.0)]) == (
        "On-demand does not pay here: it is 0.99 times as fast as the best without it. "
        "No other devices or network that was tried changes that."
    )
    assert "it is 1.019 times" in break_even_words.answer([told("devices", 1.019, whole=True)])
    assert "cannot be compared here" in break_even_words.answer([told("devices", None, 1.2, whole=True), network])


def test_a_curve_that_changes_the_answer_is_one_that_passes_what_pays(made):
    """By the made ones: whichever is named has a spot on the other side."""
    said, pays = (
        break_even_words.answer(list(made.values())),
        break_even.here(list(made.values())) >= break_even.NOTABLE,
    )
    assert said.startswith("On-demand pays" if pays else "On-demand does not pay")
    for curve in made.values():
        other = any((lead >= break_even.NOTABLE) != pays for lead in curve.leads)
        assert (f"{curve.name} (it pays" in said) == other


def test_the_lead_here_is_that_of_the_question(made):
    assert break_even.here(list(made.values())) == pytest.approx(lead(setting_of(ASKED)))


def test_wrong_weights_cost_time_and_right_ones_do_not():
    wrong = {r.name: r.times for r in regrets(setting_of(ASKED))}
    assert set(wrong) == set(WEIGHTS)
    assert wrong["tokens alone"]["on-demand"] > 1.005
    assert wrong["squares of lengths alone"]["on-demand"] > 1.005
    assert min(min(times.values()) for times in wrong.values()) > 0.98


def test_the_command_draws_and_tells(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n" + "\n".join(map(str, LENGTHS[:300])))
    args = "break-even lengths.csv --model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 2".split()
    assert main([*args, "--max-tokens", "32769", "--html", "b.html"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("On-demand ")
    assert printed.count("on-demand speedup") >= 4
    assert "Balanced by tokens alone" in printed
    page = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert page.index(printed.splitlines()[0]) < page.index("Speedup of on-demand")
    assert "curve-3" in page
    assert main([*args, "--max-tokens", "32769", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert f"it is {content['lead']:.2f} times" in printed
    assert {curve["name"] for curve in content["curves"]} >= {"links in a node", "devices", "minibatch"}


def test_what_fits_nowhere_is_told_with_what_would(capsys):
    args = "--model llama-3.1-70b --gpu h100 --devices 8 --minibatch 2".split()
    assert main(["break-even", "lognormal:median=1500,sigma=0.9,max=8192", *args]) == 0
    answer, ways_out, *rest = capsys.readouterr().out.splitlines()
    assert "cannot be compared here" in answer
    assert "does not fit. Options that fit: --offload (" in ways_out
    assert not any("Balanced by" in line for line in rest)


def test_plans_by_wrong_weights_are_told_no_true_seconds(monkeypatch):
    """Who simulates both of a balancer's deals knows them."""
    told = []
    monkeypatch.setattr("odcsim.decide.setting.sooner", lambda _cost, rivals, _schedules: told.extend(rivals) or [])
    regrets(setting_of(ASKED))
    assert told == []
