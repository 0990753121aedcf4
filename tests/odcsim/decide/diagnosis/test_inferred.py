"""Steps of which nothing but microbatches is known come to what their tracks would say: who is slow is found, whoever
it is, and nobody is called so by chance."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.microbatches import table_of
from odcsim.decide.diagnosis.paces import KERNELS, LENGTHS, PERSISTS, paces_of
from odcsim.observed.run import RanMicrobatch, RanStep, SeenRun


def seconds_of(lengths):
    return 0.05 + 1e-5 * sum(lengths) + 2e-10 * sum(n * n for n in lengths)


def watched(sync="collective", *, pace=(1.0, 1.0, 1.0), seed=0, told=False, steps=20, count=3, noise=0.005, even=False):
    """A run, and the share that its ranks waited: under collectives all take as long as the slowest."""
    rng = np.random.default_rng(seed)
    ranks, computed, whole, found = len(pace), 0.0, 0.0, []
    for number in range(steps):
        drawn = [tuple(rng.integers(100, 9000, rng.integers(1, 4)).tolist()) for _ in range(ranks * count)]
        held = [[(5000,) if even else drawn[r * count + m] for m in range(count)] for r in range(ranks)]
        own = np.array([[seconds_of(of) * pace[r] * rng.lognormal(0, noise) for of in held[r]] for r in range(ranks)])
        walls = np.broadcast_to(own.max(axis=0), own.shape) if sync == "collective" else own
        rows = [
            RanMicrobatch(r, m, float(own[r, m]) if told else 0.0, float(walls[r, m]), held[r][m])
            for r in range(ranks)
            for m in range(count)
        ]
        found.append(RanStep(number, float(walls.sum(axis=1).max()), tuple(rows)))
        computed, whole = computed + float(own.sum()), whole + found[-1].seconds * ranks
    return SeenRun("a test", ranks, tuple(range(ranks)), tuple(found), sync), 1 - computed / whole


def changed(run, change):
    """With other microbatches."""
    steps = (replace(step, microbatches=tuple(map(change, step.microbatches))) for step in run.steps)
    return replace(run, steps=tuple(steps))


def without_lengths(run):
    return changed(run, lambda mb: replace(mb, lengths=()))


def paces(*pace, alike=None, ranks=0, lengths=True, **words):
    run = watched(pace=pace, told=True, **{"steps": 12, "count": 4, "noise": 0.02} | words)[0]
    run = run if lengths else without_lengths(run)
    return paces_of(table_of(run.steps), tuple(range(ranks or len(pace))), alike or {})


@settings(max_examples=40)
@given(st.integers(2, 8), st.integers(0, 7), st.sampled_from([0.6, 1.08, 1.3, 2.0]), st.integers(0, 2**16))
def test_one_rank_that_is_not_as_fast_is_told_by_what_it_held(ranks, place, times, seed):
    pace = [1.0] * ranks
    pace[place % ranks] = times
    found = paces(*pace, seed=seed)
    assert found.told == LENGTHS
    usual = min(pace) if ranks == 2 else 1.0  # of two the quicker one is as usual
    for rank in range(ranks):
        assert found.times[rank] == pytest.approx(pace[rank] / usual, rel=0.03)
        assert pace[rank] != usual or found.times[rank] == 1.0


@pytest.mark.parametrize(("noise", "lengths"), [(0.05, True), (0.02, False)])
def test_nobody_is_called_slow_by_chance(noise, lengths):
    """Nor by samples whose lengths are unknown: of fifty runs of four ranks two at most."""
    runs = [paces(1.0, 1.0, 1.0, 1.0, seed=seed, noise=noise, lengths=lengths) for seed in range(50)]
    assert sum(found.uneven for found in runs) <= 2


def test_equal_kernels_tell_before_anything_else_and_one_that_is_near_is_alike():
    kernels = {f"kernel {k}": {0: k, 1: 1.25 * k, 2: 1.01 * k} for k in (1e-3, 2e-3, 5e-3)}
    found = paces(1.0, 1.0, 1.0, alike=kernels)
    assert found.told == KERNELS
    assert found.times == pytest.approx({0: 1.0, 1: 1.25 / 1.01, 2: 1.0})
    rng = np.random.default_rng(0)
    other = {f"kernel {k}": {0: 1.0, 1: float(rng.lognormal(0.05, 0.2))} for k in range(6)}
    assert not paces_of(table_of([]), (0, 1), other).uneven  # they disagree
    assert paces(1.0, 1.3, alike={"a kernel": {0: 1.0}}).told == LENGTHS  # not all ranks ran it


def test_where_nobody_knows_what_they_held_what_persists_is_told_and_few_steps_tell_nothing():
    found, few = (paces(1.0, 1.0, 1.5, lengths=False, even=True, steps=steps) for steps in (12, 3))
    assert (found.told, few.told, few.uneven) == (PERSISTS, "", False)
    assert found.times == pytest.approx({0: 1.0, 1: 1.0, 2: 1.5}, rel=0.03)
    found = paces(1.0, 1.3, 1.0, ranks=5)  # of which nobody saw two
    assert found.times == pytest.approx({0: 1.0, 1: 1.3, 2: 1.0, 3: 1.0, 4: 1.0}, rel=0.03)
    near, far = paces(1.0, 1.02, steps=1, count=2, noise=0.05), paces(1.0, 1.5, steps=1, count=16)
    assert not near.uneven
    assert far.times[1] == pytest.approx(1.5, rel=0.05)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("sync", ["collective", "on-demand"])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_waiting_is_found_from_what_microbatches_hold(sync, told, seed):
    run, waited = watched(sync, seed=seed, told=told)
    found = break_down(run)
    assert found.share("lengths") == pytest.approx(waited, abs=0.02)
    assert sum(part.share for part in found.parts if part.name not in ("compute", "lengths")) < 0.02
    assert found.share("transfer") < 1e-3  # what the slowest takes longer by chance is none
    assert all(rank.pace == 1.0 for rank in found.ranks)


@pytest.mark.parametrize("sync", ["collective", "on-demand"])
@pytest.mark.parametrize("told", [False, True])
def test_a_slow_rank_is_told_from_those_with_longer_samples(sync, told):
    run, waited = watched(sync, pace=(1.0, 1.0, 1.4), told=told)
    found = break_down(run)
    assert found.ranks[2].pace == pytest.approx(1.4, rel=0.03)
    assert found.share("lengths") + found.share("device") == pytest.approx(waited, abs=0.02)
    assert found.share("device") > 0.05
    assert found.ranks[2].caused > max(found.ranks[0].caused, found.ranks[1].caused)


def test_the_slowest_of_each_meeting_is_named_and_what_is_not_compute_for_certain_is_of_the_edges_or_of_lengths():
    run, _ = watched()
    for late in break_down(run).late:
        met = [mb for mb in run.steps[late.step].microbatches if mb.number == late.microbatch]
        assert late.rank == max(met, key=lambda mb: seconds_of(mb.lengths)).rank
    longer = replace(run, steps=tuple(replace(step, seconds=step.seconds + 0.5) for step in run.steps))
    assert break_down(longer).by_step["edges"] == pytest.approx([0.5] * 20)
    rows = [RanMicrobatch(0, m, 0.0, 1.0, (100,)) for m in range(3)] + [RanMicrobatch(1, 0, 0.0, 1.0, (100,))]
    found = break_down(SeenRun("a test", 2, (0, 1), (RanStep(0, 3.0, tuple(rows)),), "on-demand"))
    assert (found.by_step["compute"], found.by_step["lengths"]) == (pytest.approx([2.0]), pytest.approx([1.0]))


def test_what_cannot_be_told_apart_is_said_to_be_inferred_and_compute_that_is_told_is_taken_as_it_is():
    bare = break_down(without_lengths(watched()[0]))
    assert bare.share("compute") == pytest.approx(1.0)
    told = break_down(watched(told=True)[0]).cannot
    for found in (bare, break_down(watched(pace=(1.0, 1.0, 1.4), even=True)[0])):
        assert len(found.cannot) > len(told)
    run, waited = watched(told=True, noise=0.3)
    found = break_down(run)
    assert found.share("compute") == pytest.approx(1 - waited, abs=1e-9)
    assert found.share("untold") > 0.05


@pytest.mark.parametrize("seed", range(3))
def test_waiting_that_falls_into_the_next_microbatch_is_waiting(seed):
    """Ranks that meet before a layer, and not after the last, wait for the slowest when the next microbatch begins:
    its wall holds that, and the slowest's own does not."""
    bare, meetings, steps, computed, whole = watched(seed=seed)[0], 4, [], 0.0, 0.0
    for step in bare.steps:
        own = np.array([seconds_of(mb.lengths) for mb in step.microbatches]).reshape(3, 3)
        now, walls = np.zeros(3), np.zeros((3, 3))
        for m in range(3):
            begin = now.copy()
            for _ in range(meetings):
                now = np.full(3, now.max()) + own[:, m] / meetings
            walls[:, m] = now - begin
        rows = [replace(mb, wall=float(walls[mb.rank, mb.number])) for mb in step.microbatches]
        steps.append(RanStep(step.number, float(now.max()), tuple(rows)))
        computed, whole = computed + float(own.sum()), whole + 3 * float(now.max())
    found = break_down(SeenRun("a test", 3, (0, 1, 2), tuple(steps)))
    assert found.share("compute") == pytest.approx(computed / whole, abs=0.01)
    assert found.share("untold") + found.share("transfer") < 0.01


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_rank_that_is_always_the_slowest_is_slow_and_how_much_more_so_is_not_told(seed, noise):
    """Seconds follow what it holds; what the others hold says how slow it is at least."""
    run, waited = watched(pace=(1.0, 1.0, 1.0, 6.0), seed=seed, noise=noise)
    found = break_down(run)
    assert found.share("lengths") + found.share("device") <= waited + 0.02
    assert 1.5 < found.ranks[3].pace < 6.1
    assert [rank.pace for rank in found.ranks[:3]] == [1.0, 1.0, 1.0]
    assert found.share("device") > 0.2
    assert any(re.search("rank 3 .*(5[4-9]|60) of 60", line) for line in found.cannot)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_no_rank_is_slow_that_is_not(seed, noise):
    found = break_down(watched(pace=(1.0,) * 4, seed=seed, noise=noise)[0])
    assert [rank.pace for rank in found.ranks] == [1.0] * 4
    assert not any(re.search(r"rank \d", line) for line in found.cannot)


def test_a_rank_that_is_late_in_every_meeting_is_not_called_late_on_no_rank_throughout():
    """Its compute is told, and takes longer by another factor each time: as if its lengths did not tell all."""
    run, _ = watched(told=True)
    rng, steps = np.random.default_rng(0), []
    for step in run.steps:
        own = {(m.rank, m.number): m.seconds * (6 + 6 * rng.random() if m.rank == 2 else 1) for m in step.microbatches}
        rows = [replace(m, seconds=own[m.rank, m.number], wall=own[2, m.number]) for m in step.microbatches]
        steps.append(replace(step, microbatches=tuple(rows), seconds=sum(own[2, m] for m in range(3))))
    found = break_down(replace(run, steps=tuple(steps)))
    assert found.share("untold") > 0.01
    assert any(re.search("rank 2 .*60 of 60", line) for line in found.cannot)
