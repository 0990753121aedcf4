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

from odcsim.cli import main
from odcsim.decide.diagnosis import columns, words
from odcsim.decide.diagnosis.changes import changes
from odcsim.decide.diagnosis.found import EFFORTS
from odcsim.decide.diagnosis.parts import broken_down
from odcsim.decide.diagnosis.ran import dealt
from odcsim.decide.diagnosis.seconds import measured, plain
from odcsim.decide.diagnosis.told import answer, worth
from odcsim.decide.diagnosis.tried import TriedWay, _fuller
from odcsim.decide.evaluate import evaluate, simulated
from odcsim.decide.setting import assign, drawn, plan
from odcsim.errors import InputError
from odcsim.executors import simulation
from odcsim.neighbours.asking import flags
from odcsim.observed import files, timelines
from odcsim.observed.run import Met
from odcsim.recipe import Recipe

CLOSE = 0.03
LENGTHS = ("lognormal:median=2000,sigma=1.1,max=16384", "lognormal:median=5000,sigma=0.5,max=16384", "longalign")


def told(setting, sync="collective", balancer="native", rests="lengths", asked=(), **of):
    run = run_of(setting, sync, balancer, rests=rests)
    return run, changes(run, found_of(run), dict(asked) | of)


def seen_by(run, ranks):
    """No more of the run than these ranks' files tell."""
    kept = ([mb for mb in step.microbatches if mb.rank in ranks] for step in run.steps)
    steps = tuple(replace(step, microbatches=tuple(held)) for step, held in zip(run.steps, kept, strict=True))
    return replace(run, seen=tuple(ranks), steps=steps)


def true_gain(run, setting, way):
    seconds = truly(setting, way.balancer, way.sync, way.max_tokens)
    return sum(step.seconds for step in run.steps) / float(seconds.sum())


runs = {
    "trace": st.sampled_from(LENGTHS),
    "devices": st.sampled_from((2, 4, 8)),
    "minibatch": st.integers(2, 8),
    "seed": st.integers(0, 99),
}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.fixed_dictionaries(runs), st.sampled_from(("collective", "deferred")), st.booleans())
def test_what_is_promised_of_another_deal_is_what_it_takes(drawn, sync, named):
    setting = setting_of(**drawn, truncate=16384)
    run, found = told(setting, sync, asked=ASKED if named else {})
    assert found.replayed == pytest.approx(1, abs=CLOSE)
    for way in found.ways:
        if way.effort not in EFFORTS[:2]:
            assert way.gain == pytest.approx(true_gain(run, setting, way), rel=CLOSE)
        assert 1 < way.low <= way.gain <= way.high
        assert way.seconds == pytest.approx(np.mean([step.seconds for step in run.steps]) / way.gain)
    assert [EFFORTS.index(way.effort) for way in found.ways] == sorted(EFFORTS.index(way.effort) for way in found.ways)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.fixed_dictionaries(runs), st.sampled_from(("tokens", "seconds")))
def test_microbatches_that_are_moved_whole_promise_no_more_than_their_samples_do(drawn, rests):
    setting = setting_of(**drawn, truncate=16384)
    _, whole = told(setting, rests=rests)
    _, free = told(setting)
    assert whole.replayed == pytest.approx(1, abs=CLOSE)
    assert max(way.gain for way in whole.ways) <= max(way.gain for way in free.ways) * (1 + CLOSE)
    assert "moved whole" in whole.rests


def test_settings_are_not_told_of_microbatches_that_nobody_looked_into():
    """Their tokens are made of seconds."""
    _, found = told(setting_of(), rests="seconds", asked=ASKED | {"trainer": "trl"})
    assert {(way.max_tokens, way.setting) for way in found.ways} == {(0, "")}
    assert any("trl's own settings" in words for words in found.cannot)
    engine = answer(found.inputs, [way.row for way in found.ways])
    with pytest.raises(InputError, match="as it was priced"):
        flags("trl", engine, row=len(found.ways))


def test_an_even_run_has_nothing_to_gain():
    _, found = told(setting_of("uniform:min=3990,max=4000", max_tokens=4000))
    assert found.ways == ()
    assert found.replayed == pytest.approx(1, abs=CLOSE)


def test_what_is_run_as_well_as_can_be_has_nothing_to_gain_from_a_sampler():
    _, found = told(setting_of(), balancer="sorted-slice")
    assert [way for way in found.ways if way.effort == EFFORTS[2]] == []


def test_the_same_run_has_the_same_answer():
    """What ranks held that nobody saw is drawn."""
    run = run_of(setting_of(minibatches=6))
    some = seen_by(run, range(5))
    first, again = (changes(some, found_of(some), {"seed": 3}) for _ in range(2))
    assert first.ways
    assert first.ways == again.ways


def test_a_way_is_worth_it_by_a_margin_and_beyond_chance():
    setting = setting_of(minibatches=2)
    row = evaluate(setting, [("native", "collective")])
    gains = ((1.02, 1.01, 1.03), (1.2, 0.9, 1.5), (1.04, 1.01, 1.07), (1.3, 1.2, 1.4))
    every = [TriedWay(effort, "a way", row, gain) for effort in EFFORTS for gain in gains[:3]]
    assert [one.gain for one in worth([*every, TriedWay(EFFORTS[2], "another", row, gains[3])])] == [
        gains[2],
        gains[2],
        *gains[2:],
        gains[2],
    ]


def test_a_slow_rank_is_in_both_and_mending_it_is_a_way():
    setting = setting_of()
    slow = slowed(setting, 3, 1.4)
    run = run_of(slow)
    found = changes(run, found_of(run, {3: 1.4}), {})
    assert found.replayed == pytest.approx(1, abs=CLOSE)
    [mended] = [way for way in found.ways if "rank 3" in way.way]
    assert mended.gain == pytest.approx(
        sum(s.seconds for s in run.steps) / truly(setting, "native", "collective").sum(), rel=CLOSE
    )
    for way in found.ways:
        if way.effort not in EFFORTS[:2]:
            assert way.gain == pytest.approx(true_gain(run, slow, way), rel=CLOSE)


def test_what_the_host_loses_is_lost_whatever_is_dealt():
    setting = setting_of()
    run = run_of(setting, beside=0.5)
    found = changes(run, found_of(run, loader=np.full(len(run.steps), 0.5)), {})
    assert found.replayed == pytest.approx(1, abs=CLOSE)
    loader, *others = sorted(found.ways, key=lambda way: "loader" not in way.way)
    steps = sum(step.seconds for step in run.steps)
    assert loader.gain == pytest.approx(steps / (steps - 0.5 * len(run.steps)))
    for way in others:
        seconds = truly(setting, way.balancer, way.sync, way.max_tokens) + 0.5
        assert way.gain == pytest.approx(steps / seconds.sum(), rel=CLOSE)


def test_padding_is_a_setting_that_can_go():
    setting = replace(setting_of(max_tokens=40000), each=2)
    run = run_of(setting, balancer="padded", pads=True)
    found = changes(run, found_of(run), {})
    [bare] = [way for way in found.ways if "without padding" in way.way]
    assert bare.gain == pytest.approx(true_gain(run, setting, replace(bare, balancer="batches")), rel=CLOSE)
    assert bare.effort == EFFORTS[0]


def test_steps_of_unlike_numbers_of_samples_are_each_dealt_with_their_own():
    few, many = (run_of(setting_of(minibatch=n, seed=n)) for n in (3, 7))
    steps = tuple(replace(step, number=i) for i, step in enumerate((*few.steps[:6], *many.steps[:6])))
    found = changes(run := replace(few, steps=steps), found_of(run), {})
    assert found.replayed == pytest.approx(1, abs=CLOSE)
    assert found.ways
    assert all(way.row["minibatches"] == 12 for way in found.ways)


def test_a_row_is_what_the_evaluation_says():
    """Of the same samples and seconds, asked again."""
    from odcsim.decide.diagnosis.replay import replay

    setting = setting_of()
    run = run_of(setting)
    found = changes(run, found_of(run), ASKED)
    again = replay(run, found_of(run), ASKED).setting
    for way in found.ways:
        if way.effort not in EFFORTS[:2]:
            [row] = evaluate(replace(again, max_tokens=way.max_tokens), [(way.balancer, way.sync)]).rows
            assert way.row == {"max_tokens": way.max_tokens} | row.as_json()


def test_ranks_that_nobody_saw_are_like_those_that_were_seen():
    run = run_of(setting_of(minibatches=20))
    part = seen_by(run, (0, 5))
    found = changes(part, found_of(part), {})
    whole = changes(run, found_of(run), {})
    best, true = (max(way.gain for way in of.ways) for of in (found, whole))
    assert best == pytest.approx(true, rel=0.2)
    assert any("6 ranks" in words for words in found.cannot)


def test_what_one_share_of_one_step_cannot_tell_is_said():
    run = run_of(setting_of(minibatches=1))
    part = seen_by(run, (0, 3))
    found = changes(part, found_of(part), {})
    assert found.ways == ()
    assert "what 2 of 8 ranks and steps held" in found.cannot[0]


def test_of_one_rank_no_other_way_is_told():
    """However many of its steps were seen: why it waits is in the files of others."""
    part = seen_by(run_of(setting_of(minibatches=20)), (3,))
    found = changes(part, found_of(part), ASKED)
    assert found.ways == ()
    assert "one of the 8 ranks was seen" in found.cannot[0]


@pytest.mark.parametrize("share", [0.8, 0.9, 0.99])
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_faster_than_its_compute(share, seed):
    """Of steps that are said to be compute for so much. No two samples fit a microbatch, so that no way has fewer."""
    setting = setting_of("uniform:min=8200,max=16384", seed=seed)
    run = run_of(setting)
    seconds = np.array([step.seconds for step in run.steps])
    bounded, free = (changes(run, found_of(run, **of), ASKED | {"max_tokens": 16384}).ways for of in (
        {"compute": share * seconds}, {}))  # fmt: skip
    assert max(way.gain for way in free) > 1 / 0.9
    for way in bounded:
        assert way.high <= (1 + CLOSE) / share


def test_devices_that_a_run_does_not_have_are_refused():
    run = run_of(setting_of())
    with pytest.raises(InputError, match="--devices 4 given for a run of 8 ranks"):
        changes(run, found_of(run), {"devices": 4})


def test_what_one_step_tells_has_no_interval():
    run = run_of(setting_of(minibatches=1))
    found = changes(run, found_of(run), {})
    _, rows = columns.ways(found)
    assert [cells[3] for cells in rows] == ["-"] * len(found.ways) != []
    assert not any(" to " in words.way(way).split(", ")[0] for way in found.ways)


def test_what_replays_badly_is_said_and_its_interval_is_wider():
    run = run_of(setting_of())
    longer = replace(run, steps=tuple(replace(step, seconds=1.5 * step.seconds) for step in run.steps))
    good, bad = (changes(of, found_of(of), {}) for of in (run, longer))
    assert bad.replayed == pytest.approx(good.replayed / 1.5)
    assert any("simulated" in words for words in bad.cannot)
    assert not any("simulated" in words for words in good.cannot)
    assert all(one.low < other.low for one, other in zip(bad.ways, good.ways, strict=True))


def test_dollars_are_those_of_the_devices_that_are_spared():
    _, found = told(setting_of(), price=2.5)
    for way in found.ways:
        assert way.dollars_a_day == pytest.approx(8 * 24 * 2.5 * (1 - 1 / way.gain))
    assert all(way.dollars_a_day is None for way in told(setting_of())[1].ways)


def test_memory_that_nobody_knows_is_not_told():
    _, found = told(setting_of())
    assert {way.fits for way in found.ways} == {None}
    assert {way.row["memory_bytes"] for way in found.ways} == {None}
    _, known = told(setting_of(), asked=ASKED)
    assert {way.fits for way in known.ways} == {True}


@pytest.fixture(scope="module")
def padded():
    setting = replace(setting_of(max_tokens=40000), each=2)
    run = run_of(setting, balancer="padded", pads=True)
    return run, changes(run, found_of(run), ASKED | {"trainer": "trl"})


def test_a_trainers_own_ways_are_in_its_own_words(padded):
    _, found = padded
    own = [way for way in found.ways if way.effort == EFFORTS[0] and way.setting]
    assert any("--packing true" in way.setting for way in own)
    assert all("--per_device_train_batch_size" in way.setting for way in own)


def test_flags_reads_the_rows(padded, tmp_path, capsys):
    _, found = padded
    told = answer(found.inputs, [way.row for way in found.ways])
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    for number, way in enumerate(found.ways, 1):
        if way.setting:
            main(["flags", "trl", str(path), "--row", str(number)])
            assert way.setting in capsys.readouterr().out
            assert flags("trl", told, row=number).settings
    assert {way.sync for way in found.ways if way.setting} >= {"on-demand"}


def test_one_device_has_nobody_to_wait_for():
    run = run_of(setting_of(devices=1))
    found = changes(run, found_of(run), {})
    assert found.ways == ()
    assert "nobody waits" in found.cannot[0]


FIXTURES = ROOT / "tests/odcsim/observed/fixtures"
CAUSES = json.loads((FIXTURES / "truth.json").read_text(encoding="utf-8"))["runs"]
MENDED = {"loader": "data loader", "collector": "garbage", "device": "rank 1"}


@cache
def recorded(cause):
    run = files.read([str(path) for path in sorted(FIXTURES.glob(f"{cause}-rank*.json.gz"))])
    return changes(run, broken_down(run), {})


@pytest.mark.parametrize("cause", CAUSES)
def test_recorded_runs_replay(cause):
    """A network that is slowed down is slower at some moments than at others."""
    assert recorded(cause).replayed == pytest.approx(1, abs=0.1 if cause == "network" else 0.05)


@pytest.mark.parametrize("cause", MENDED)
def test_what_mending_promises_is_what_the_run_without_the_cause_took(cause):
    """The same job was recorded with nothing injected."""
    [way] = [way for way in recorded(cause).ways if MENDED[cause] in way.way]
    assert way.seconds == pytest.approx(CAUSES["none"]["step"], rel=0.05)
    assert way.gain == max(way.gain for way in recorded(cause).ways)
    assert way.effort == EFFORTS[1]


def test_every_cause_that_can_be_mended_has_a_repair_and_so_have_all_of_them():
    repairs = [way for way in recorded("all").ways if way.effort == EFFORTS[1]]
    *each, together = repairs
    assert [sum(words in way.way for way in each) for words in MENDED.values()] == [1, 1, 1]
    assert [way.gain for way in each] == sorted((way.gain for way in each), reverse=True)
    assert "together" in together.way
    saved = sum(1 - 1 / way.gain for way in each)
    assert 1 - 1 / together.gain == pytest.approx(saved, abs=0.02)


def test_a_run_with_nothing_injected_has_nothing_to_gain():
    assert recorded("none").ways == ()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "way", [("native", "collective"), ("lb-micro", "deferred"), ("native", "on-demand")], ids=" ".join
)
def test_a_simulated_timeline_is_promised_what_is_true(way, named):
    balancer, sync = way
    setting = setting_of()
    file = plan(setting, balancer)
    run = timelines.run_of(simulation.simulate(file, simulated(setting, sync)), file)
    found = changes(run, broken_down(run), ASKED if named else {})
    assert found.replayed == pytest.approx(1, abs=CLOSE)
    assert found.ways
    for one in found.ways:
        if one.effort not in EFFORTS[:2]:
            assert one.gain == pytest.approx(true_gain(run, setting, one), rel=CLOSE)


def test_fuller_microbatches_take_what_they_really_take():
    setting = setting_of()
    run, found = told(setting, asked=ASKED)
    [fuller] = [way for way in found.ways if way.effort == EFFORTS[0]]
    bare = assign(setting, "native", drawn(setting)).schedules
    way = simulated(setting, "collective")
    seconds = simulation.usage([_fuller(one, fuller.max_tokens, meets=True) for one in bare], way).makespan
    assert fuller.max_tokens > setting.limit
    assert fuller.gain == pytest.approx(sum(step.seconds for step in run.steps) / seconds.sum(), rel=CLOSE)


def test_a_limit_that_is_asked_for_is_the_limit():
    _, found = told(setting_of(), asked=ASKED, max_tokens=20000)
    assert {way.max_tokens for way in found.ways if way.effort not in EFFORTS[:2]} == {20000}


def test_seconds_that_hold_waiting_are_those_of_the_heaviest():
    """All ranks wait for it in each round: what it takes, and its transfers, is what the watcher sees of all."""
    setting = setting_of(max_tokens=16384)
    run = run_of(setting)
    steps = []
    for step in run.steps:
        walls = np.zeros(max(mb.number for mb in step.microbatches) + 1)
        for mb in step.microbatches:
            walls[mb.number] = max(walls[mb.number], mb.seconds)
        held = tuple(replace(mb, seconds=0.0, wall=float(walls[mb.number])) for mb in step.microbatches)
        steps.append(replace(step, microbatches=held))
    found = changes(run := replace(run, steps=tuple(steps), transfers=()), found_of(run), {})
    assert found.replayed == pytest.approx(1, abs=0.1)
    for way in found.ways:
        assert way.gain == pytest.approx(true_gain(run, setting, way), rel=0.1)


def test_lengths_that_are_all_alike_tell_no_squares_and_that_is_said():
    run = run_of(setting_of("uniform:min=4000,max=4000", max_tokens=4000))
    found = changes(run, found_of(run), {})
    assert any("squares" in words for words in found.cannot)
    assert found.replayed == pytest.approx(1, abs=CLOSE)


def test_hybrid_sharding_is_a_setting_where_transfers_leave_a_node(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text("nic_gbit_s = 25", encoding="utf-8")
    setting = setting_of(
        "uniform:min=200,max=400",
        devices=16,
        devices_per_node=8,
        minibatch=8,
        max_tokens=400,
        cluster=str(path),
        sharding="full",
    )
    run = run_of(setting)
    spent = 0.5 * np.array([step.seconds for step in run.steps])
    asked = ASKED | {"devices_per_node": 8, "cluster": str(path)}
    found = changes(run, found_of(run, transfer=spent), asked)
    [hybrid] = [way for way in found.ways if "hybrid" in way.way]
    inside = replace(setting, cost=setting.cost.by(sharding="hybrid"))
    true = sum(step.seconds for step in run.steps) / truly(inside, "native", "collective").sum()
    assert hybrid.row["sharding"] == "hybrid"
    assert hybrid.gain == pytest.approx(true, rel=0.05)
    assert not [way for way in changes(run, found_of(run), asked).ways if "hybrid" in way.way]


def test_gradients_that_are_summed_are_moved_as_they_were_seen():
    """A model that every rank holds whole: nothing is gathered."""
    run = run_of(setting_of(minibatches=4))
    came = dict.fromkeys(range(8), 0.0)
    met = tuple(Met("all-reduce", 10**8, 8, came, 0.01) for _ in range(6))
    whole = replace(run, transfers=(), steps=tuple(replace(step, meetings=met) for step in run.steps))
    deals = dealt(whole, {})
    profile = measured(whole, deals, plain(whole), Recipe(sync="collective"), {}, "h100").profile
    layers, rounds = whole.layers + 1, len(deals.held[0][0])
    assert profile.timing("reduce-scatter", 8).constant * layers * rounds == pytest.approx(0.06)
    assert profile.timing("all-gather", 8).constant == profile.timing("all-gather", 8).per_byte == 0


def test_a_way_says_what_it_changes_of_microbatches_beside_their_deal():
    said = []
    for limit in (16384, 70000):
        run = run_of(setting := setting_of(LENGTHS[0], minibatch=8, max_tokens=limit))
        ran = sum(len(step.microbatches) for step in run.steps) / len(run.steps) / run.ranks
        for way in changes(run, found_of(run), {**ASKED, "max_tokens": 2 * setting.limit}).ways:
            if way.effort == "a setting":
                continue
            said.append("microbatches a device" in way.way)
            assert said[-1] == (not 0.8 <= way.row["microbatches"] / ran <= 1.25), way
    assert any(said)
