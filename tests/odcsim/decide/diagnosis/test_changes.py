"""What is promised to a run whose truth is known is what the other schedule really takes there."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ran_runs import ASKED, found_of, run_of, setting_of, slowed, truly
from scripts import ROOT

from odcsim import InputError, flags, plan
from odcsim.decide import room
from odcsim.decide.diagnosis import alternatives, deals, seconds
from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.changes import changes
from odcsim.decide.diagnosis.outcome import EFFORTS
from odcsim.decide.diagnosis.replay import replay
from odcsim.decide.diagnosis.worth import worth
from odcsim.decide.evaluate import evaluate
from odcsim.decide.setting import assign, draw_minibatches
from odcsim.executors import simulation
from odcsim.observed import run_files, timelines
from odcsim.observed.run import Met
from odcsim.recipe import Recipe
from odcsim.say.diagnosis_words import ways

CLOSE = 0.03
LENGTHS = ("lognormal:median=2000,sigma=1.1,max=16384", "lognormal:median=5000,sigma=0.5,max=16384", "longalign")
SETTINGS = st.builds(
    setting_of, st.sampled_from(LENGTHS), devices=st.sampled_from((2, 4, 8)), minibatch=st.integers(2, 8),
    seed=st.integers(0, 99), truncate=st.just(16384),
)  # fmt: skip
FIXTURES = ROOT / "tests/odcsim/observed/fixtures"
CAUSES = json.loads((FIXTURES / "truth.json").read_text(encoding="utf-8"))["runs"]
MENDED = {"loader": "data loader", "collector": "garbage", "device": "rank 1"}


def told(setting, sync="collective", balancer="native", rests="lengths", asked=()):
    run = run_of(setting, sync, balancer, rests=rests)
    return run, changes(run, found_of(run), dict(asked))


def took(run):
    return sum(step.seconds for step in run.steps)


def way_of(found, effort):
    [way] = [way for way in found.ways if way.effort == effort]
    return way


def seen_by(run, ranks):
    """No more of the run than these ranks' files tell."""
    kept = [tuple(mb for mb in step.microbatches if mb.rank in ranks) for step in run.steps]
    steps = tuple(replace(step, microbatches=held) for step, held in zip(run.steps, kept, strict=True))
    return replace(run, seen=tuple(ranks), steps=steps)


@pytest.fixture(scope="module")
def usual():
    """A setting, a run of it, and what is found where nobody says which model it was."""
    setting = setting_of()
    return setting, *told(setting)


def dealt_anew(found):
    return [way for way in found.ways if way.effort not in EFFORTS[:2]]


def check(run, found, setting, beside=0.0, close=CLOSE):
    """Deals come to what they take on the true cost, where nothing else is changed."""
    assert found.replayed == pytest.approx(1, abs=close)
    for way in dealt_anew(found):
        seconds = truly(setting, way.balancer, way.sync, way.max_tokens) + beside
        assert way.gain == pytest.approx(took(run) / float(seconds.sum()), rel=close)


@settings(max_examples=15)
@given(SETTINGS, st.sampled_from(("collective", "deferred")), st.booleans())
def test_what_is_promised_of_another_deal_is_what_it_takes(setting, sync, named):
    run, found = told(setting, sync, asked=ASKED if named else {})
    check(run, found, setting)
    for way in found.ways:
        assert 1 < way.low <= way.gain <= way.high
        assert way.seconds == pytest.approx(np.mean([step.seconds for step in run.steps]) / way.gain)
    efforts = [EFFORTS.index(way.effort) for way in found.ways]
    assert efforts == sorted(efforts)


@settings(max_examples=6)
@given(SETTINGS, st.sampled_from(("tokens", "seconds")))
def test_microbatches_that_are_moved_whole_promise_no_more_than_their_samples_do(setting, rests):
    whole, free = told(setting, rests=rests)[1], told(setting)[1]
    assert whole.replayed == pytest.approx(1, abs=CLOSE)
    assert max(way.gain for way in whole.ways) <= max(way.gain for way in free.ways) * (1 + CLOSE)
    assert whole.rests != free.rests


def test_a_way_is_worth_it_by_a_margin_and_beyond_chance():
    row = evaluate(setting_of(minibatches=2), [("native", "collective")])
    small, unsure, good, best = (1.02, 1.01, 1.03), (1.2, 0.9, 1.5), (1.04, 1.01, 1.07), (1.3, 1.2, 1.4)
    every = [alternatives.TriedWay(effort, "a way", row, gain) for effort in EFFORTS for gain in (small, unsure, good)]
    every.append(alternatives.TriedWay(EFFORTS[2], "another", row, best))
    assert [one.gain for one in worth(every)] == [good, good, good, best, good]


@pytest.mark.parametrize(
    ("words", "balancer", "effort"),
    [({"trace": "uniform:min=3990,max=4000", "max_tokens": 4000}, "native", None), ({"devices": 1}, "native", None),
     ({}, "sorted-slice", EFFORTS[2])],  # as well as a sampler can
)  # fmt: skip
def test_where_all_is_as_well_as_can_be_there_is_nothing_to_gain(words, balancer, effort):
    _, found = told(setting_of(**words), balancer=balancer)
    assert [way for way in found.ways if effort in (None, way.effort)] == []
    assert found.replayed == pytest.approx(1, abs=CLOSE) or found.cannot  # of one device: nobody waits


def test_ranks_that_nobody_saw_are_like_those_that_were_seen():
    """What they held is drawn, and the same again. A share of a step, or one rank, cannot tell."""
    for steps, ranks in ((1, (0, 3)), (20, (3,))):
        part = seen_by(run_of(setting_of(minibatches=steps)), ranks)
        none = changes(part, found_of(part), ASKED)
        assert (none.ways, bool(none.cannot)) == ((), True)
    run = run_of(setting_of(minibatches=20))
    part = seen_by(run, (0, 5))
    found, again = (changes(part, found_of(part), {"seed": 3}) for _ in range(2))
    assert found.ways == again.ways
    whole = changes(run, found_of(run), {})
    best, true = (max(way.gain for way in of.ways) for of in (found, whole))
    assert best == pytest.approx(true, rel=0.2)
    assert len(found.cannot) > len(whole.cannot)


def test_a_slow_rank_is_in_both_and_mending_it_is_a_way(usual):
    run = run_of(slow := slowed(usual[0], 3, 1.4))
    found = changes(run, found_of(run, {3: 1.4}), {})
    check(run, found, slow)
    whole = truly(usual[0], "native", "collective").sum()
    assert way_of(found, EFFORTS[1]).gain == pytest.approx(took(run) / whole, rel=CLOSE)


def test_what_the_host_loses_is_lost_whatever_is_dealt(usual):
    run = run_of(usual[0], beside=0.5)
    found = changes(run, found_of(run, loader=np.full(len(run.steps), 0.5)), {})
    check(run, found, usual[0], beside=0.5)
    assert way_of(found, EFFORTS[1]).gain == pytest.approx(took(run) / (took(run) - 0.5 * len(run.steps)))


def test_steps_of_unlike_numbers_of_samples_are_each_dealt_with_their_own():
    few, many = (run_of(setting_of(minibatch=n, seed=n)) for n in (3, 7))
    steps = tuple(replace(step, number=i) for i, step in enumerate((*few.steps[:6], *many.steps[:6])))
    found = changes(run := replace(few, steps=steps), found_of(run), {})
    assert found.replayed == pytest.approx(1, abs=CLOSE)
    assert {way.row["minibatches"] for way in found.ways} == {12}


@pytest.mark.parametrize("share", [0.8, 0.99])
def test_nothing_is_faster_than_its_compute(share):
    """Of steps that are said to be compute for so much. No two samples fit a microbatch, so that no way has fewer."""
    run = run_of(setting_of("uniform:min=8200,max=16384", seed=1))
    seconds = np.array([step.seconds for step in run.steps])
    asked = ASKED | {"max_tokens": 16384}
    bounded, free = (changes(run, found_of(run, **of), asked).ways for of in ({"compute": share * seconds}, {}))
    assert max(way.gain for way in free) > 1 / 0.9
    assert all(way.high <= (1 + CLOSE) / share for way in bounded)


def test_what_replays_badly_is_said_and_its_interval_is_wider(usual):
    _, run, good = usual
    longer = replace(run, steps=tuple(replace(step, seconds=1.5 * step.seconds) for step in run.steps))
    bad = changes(longer, found_of(longer), {})
    assert bad.replayed == pytest.approx(good.replayed / 1.5)
    assert len(bad.cannot) > len(good.cannot)
    assert all(one.low < other.low for one, other in zip(bad.ways, good.ways, strict=True))
    one = told(setting_of(minibatches=1))[1]
    assert {cells[2] for cells in ways(one).rows} == {"-"}  # of one step no interval


def test_dollars_and_memory_are_told_where_they_are_known(usual):
    named = told(usual[0], asked=ASKED | {"price": 2.5, "max_tokens": 20_000})[1]
    for way in named.ways:
        assert way.dollars_a_day == pytest.approx(8 * 24 * 2.5 * (1 - 1 / way.gain))
        assert way.fits is True
    assert {(way.dollars_a_day, way.fits, way.row["memory_bytes"]) for way in usual[2].ways} == {(None,) * 3}
    assert {way.max_tokens for way in dealt_anew(named)} == {20_000}  # as was asked for
    with pytest.raises(InputError):
        changes(usual[1], found_of(usual[1]), {"devices": 4})


def test_fuller_microbatches_take_what_they_really_take_and_a_row_is_what_the_evaluation_says(usual):
    """Of the same samples and seconds, asked again."""
    setting, run, _ = usual
    found, again = changes(run, found_of(run), ASKED), replay(run, found_of(run), ASKED).setting
    for way in dealt_anew(found):
        [row] = evaluate(replace(again, max_tokens=way.max_tokens), [(way.balancer, way.sync)]).rows
        assert way.row == {"max_tokens": way.max_tokens} | row.as_json()
    fuller = way_of(found, EFFORTS[0])
    schedules = assign(setting, "native", draw_minibatches(setting)).schedules
    full = [alternatives.fuller(one, fuller.max_tokens, meets=True) for one in schedules]
    assert fuller.max_tokens > setting.limit
    true = simulation.usage(full, room.under(setting.cost, "collective"), seed=setting.seed).makespan.sum()
    assert fuller.gain == pytest.approx(took(run) / true, rel=CLOSE)


def test_padding_is_a_setting_that_can_go_and_a_trainer_says_which():
    setting = replace(setting_of(max_tokens=40000), each=2)
    run = run_of(setting, balancer="padded", pads=True)
    bare = way_of(changes(run, found_of(run), {}), EFFORTS[0])
    seconds = truly(setting, "batches", bare.sync, bare.max_tokens)
    assert bare.gain == pytest.approx(took(run) / seconds.sum(), rel=CLOSE)
    found = changes(run, found_of(run), ASKED | {"trainer": "trl"})
    assert any("--packing true" in way.setting for way in found.ways if way.effort == EFFORTS[0])
    assert {way.sync for way in found.ways if way.setting} >= {"on-demand"}


def test_settings_are_not_told_of_microbatches_that_nobody_looked_into(usual):
    """Their tokens are made of seconds."""
    _, found = told(usual[0], rests="seconds", asked=ASKED | {"trainer": "trl"})
    assert {(way.max_tokens, way.setting) for way in found.ways} == {(0, "")}
    with pytest.raises(InputError):
        flags("trl", {"inputs": found.inputs, "rows": [way.row for way in found.ways]}, row=len(found.ways))


@cache
def recorded(cause):
    run = run_files.read([str(path) for path in sorted(FIXTURES.glob(f"{cause}-rank*.json.gz"))])
    return changes(run, break_down(run), {})


def test_hybrid_sharding_is_a_setting_where_transfers_leave_a_node(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text("nic_gbit_s = 25", encoding="utf-8")
    where = {"devices_per_node": 8, "cluster": str(path)}
    setting = setting_of("uniform:min=200,max=400", devices=16, max_tokens=400, sharding="full", **where)
    run = run_of(setting)
    spent, asked = 0.5 * np.array([step.seconds for step in run.steps]), ASKED | where
    found = changes(run, found_of(run, transfer=spent), asked)
    [hybrid] = [way for way in found.ways if "hybrid" in way.way]
    inside = replace(setting, cost=setting.cost.by(sharding="hybrid"))
    assert hybrid.row["sharding"] == "hybrid"
    assert hybrid.gain == pytest.approx(took(run) / truly(inside, "native", "collective").sum(), rel=0.05)
    assert not [way for way in changes(run, found_of(run), asked).ways if "hybrid" in way.way]


@pytest.mark.parametrize("cause", CAUSES)
def test_recorded_runs_replay(cause):
    """A network that is slowed down is slower at some moments than at others."""
    assert recorded(cause).replayed == pytest.approx(1, abs=0.1 if cause == "network" else 0.05)
    assert recorded("none").ways == ()


@pytest.mark.parametrize("cause", MENDED)
def test_what_mending_promises_is_what_the_run_without_the_cause_took(cause):
    """The same job was recorded with nothing injected; and with all causes, each is mended alone and together."""
    [way] = [way for way in recorded(cause).ways if MENDED[cause] in way.way]
    assert way.seconds == pytest.approx(CAUSES["none"]["step"], rel=0.05)
    assert way.gain == max(way.gain for way in recorded(cause).ways)
    assert way.effort == EFFORTS[1]
    *each, together = [way for way in recorded("all").ways if way.effort == EFFORTS[1]]
    assert sum(MENDED[cause] in way.way for way in each) == 1
    assert [way.gain for way in each] == sorted((way.gain for way in each), reverse=True)
    assert 1 - 1 / together.gain == pytest.approx(sum(1 - 1 / way.gain for way in each), abs=0.02)


@pytest.mark.parametrize(("balancer", "sync"), [("lb-micro", "deferred"), ("native", "on-demand")])
def test_a_simulated_timeline_is_promised_what_is_true(balancer, sync, usual):
    file = plan(usual[0], balancer)
    run = timelines.run_of(simulation.simulate(file, room.under(usual[0].cost, sync)), file)
    found = changes(run, break_down(run), ASKED)
    assert found.ways
    check(run, found, usual[0])


def test_seconds_that_hold_waiting_are_those_of_the_heaviest(usual):
    """All ranks wait for it in each round: what it takes, and its transfers, is what the watcher sees of all."""
    setting, run, _ = usual
    steps = []
    for step in run.steps:
        walls = {}
        for mb in step.microbatches:
            walls[mb.number] = max(walls.get(mb.number, 0.0), mb.seconds)
        held = tuple(replace(mb, seconds=0.0, wall=walls[mb.number]) for mb in step.microbatches)
        steps.append(replace(step, microbatches=held))
    watched = replace(run, steps=tuple(steps), transfers=())
    check(watched, changes(watched, found_of(watched), {}), setting, close=0.1)


def test_lengths_that_are_all_alike_tell_no_squares_and_that_is_said(usual):
    _, found = told(setting_of("uniform:min=4000,max=4000", max_tokens=4000))
    assert len(found.cannot) > len(usual[2].cannot)
    assert found.replayed == pytest.approx(1, abs=CLOSE)


def test_gradients_that_are_summed_are_moved_as_they_were_seen():
    """A model that every rank holds whole: nothing is gathered."""
    run = run_of(setting_of(minibatches=4))
    met = tuple(Met("all-reduce", 10**8, 8, dict.fromkeys(range(8), 0.0), 0.01) for _ in range(6))
    whole = replace(run, transfers=(), steps=tuple(replace(step, meetings=met) for step in run.steps))
    dealt, recipe = deals.deals_of(whole, {}), Recipe(sync="collective")
    profile = seconds.measured(whole, dealt, seconds.plain(whole), recipe, {}, "h100").profile
    scattered, gathered = (profile.timing(kind, 8) for kind in ("reduce-scatter", "all-gather"))
    assert scattered.constant * (whole.layers + 1) * len(dealt.held[0][0]) == pytest.approx(0.06)
    assert gathered.constant == gathered.per_byte == 0
