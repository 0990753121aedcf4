"""Steps of which nothing but microbatches is known come to what their tracks would say."""

import re
from dataclasses import replace

import numpy as np
import pytest

from odcsim.decide.diagnosis.parts import broken_down
from odcsim.observed.run import RanMicrobatch, RanStep, SeenRun


def seconds_of(lengths):
    return 0.05 + 1e-5 * sum(lengths) + 2e-10 * sum(n * n for n in lengths)


def watched(sync, *, pace=(1.0, 1.0, 1.0), seed=0, told=False, steps=20, noise=0.005, even=False):
    """A run, and the shares that its ranks computed and waited: under collectives all take as long as the slowest."""
    rng = np.random.default_rng(seed)
    ranks, computed, whole, found = len(pace), 0.0, 0.0, []
    for number in range(steps):
        draw = (lambda: (5000,)) if even else lambda: tuple(rng.integers(100, 9000, rng.integers(1, 4)).tolist())
        held = [[draw() for _ in range(3)] for _ in range(ranks)]
        own = np.array([[seconds_of(of) * pace[r] * rng.lognormal(0, noise) for of in held[r]] for r in range(ranks)])
        walls = np.broadcast_to(own.max(axis=0), own.shape) if sync == "collective" else own
        took = float(walls.sum(axis=1).max())
        rows = [
            RanMicrobatch(r, m, float(own[r, m]) if told else 0.0, float(walls[r, m]), held[r][m])
            for r in range(ranks)
            for m in range(3)
        ]
        found.append(RanStep(number, took, tuple(rows)))
        computed, whole = computed + float(own.sum()), whole + took * ranks
    return SeenRun("a test", ranks, tuple(range(ranks)), tuple(found), sync), 1 - computed / whole


@pytest.mark.drawn(6)
@pytest.mark.parametrize("sync", ["collective", "on-demand"])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_waiting_is_found_from_what_microbatches_hold(sync, told, seed):
    run, waited = watched(sync, seed=seed, told=told)
    found = broken_down(run)
    assert found.share("lengths") == pytest.approx(waited, abs=0.02)
    assert sum(part.share for part in found.parts if part.name not in ("compute", "lengths")) < 0.02
    assert found.share("transfer") < 1e-3  # what the slowest takes longer by chance is none
    assert all(rank.pace == 1.0 for rank in found.ranks)


@pytest.mark.parametrize("sync", ["collective", "on-demand"])
@pytest.mark.parametrize("told", [False, True])
def test_a_slow_rank_is_told_from_those_with_longer_samples(sync, told):
    run, waited = watched(sync, pace=(1.0, 1.0, 1.4), told=told)
    found = broken_down(run)
    assert found.ranks[2].pace == pytest.approx(1.4, rel=0.03)
    assert found.share("lengths") + found.share("device") == pytest.approx(waited, abs=0.02)
    assert found.share("device") > 0.05
    assert found.ranks[2].caused > max(found.ranks[0].caused, found.ranks[1].caused)


def test_the_slowest_of_each_meeting_is_the_one_that_is_named():
    run, _ = watched("collective")
    for late in broken_down(run).late:
        held = {
            one.rank: seconds_of(one.lengths)
            for one in run.steps[late.step].microbatches
            if one.number == late.microbatch
        }
        assert late.rank == max(held, key=held.get)


def test_what_is_not_compute_for_certain_is_of_the_edges_or_of_lengths():
    run, _ = watched("collective")
    longer = replace(run, steps=tuple(replace(step, seconds=step.seconds + 0.5) for step in run.steps))
    assert broken_down(longer).by_step["edges"] == pytest.approx([0.5] * 20)
    rows = [RanMicrobatch(0, m, 0.0, 1.0, (100,)) for m in range(3)] + [RanMicrobatch(1, 0, 0.0, 1.0, (100,))]
    found = broken_down(SeenRun("a test", 2, (0, 1), (RanStep(0, 3.0, tuple(rows)),), "on-demand"))
    assert (found.by_step["compute"], found.by_step["lengths"]) == (pytest.approx([2.0]), pytest.approx([1.0]))


def test_what_cannot_be_told_apart_is_said_to_be_inferred():
    run, _ = watched("collective")
    walls = [
        replace(s, microbatches=tuple(replace(m, lengths=()) for m in s.microbatches)) for s in run.steps
    ]  # and nothing else is known
    bare = broken_down(replace(run, steps=tuple(walls)))
    assert bare.share("compute") == pytest.approx(1.0)
    told = broken_down(watched("collective", told=True)[0]).cannot
    for found in (bare, broken_down(watched("collective", pace=(1.0, 1.0, 1.4), even=True)[0])):
        assert len(found.cannot) > len(told)


def test_compute_that_is_told_apart_is_taken_as_it_is_whatever_lengths_say():
    run, waited = watched("collective", told=True, noise=0.3)
    found = broken_down(run)
    assert found.share("compute") == pytest.approx(1 - waited, abs=1e-9)
    assert found.share("untold") > 0.05


@pytest.mark.parametrize("seed", range(3))
def test_waiting_that_falls_into_the_next_microbatch_is_waiting(seed):
    """Ranks that meet before a layer, and not after the last, wait for the slowest when the next microbatch begins:
    its wall holds that, and the slowest's own does not."""
    rng, meetings, steps, computed, whole = np.random.default_rng(seed), 4, [], 0.0, 0.0
    for number in range(20):
        held = [[tuple(rng.integers(100, 9000, 2).tolist()) for _ in range(3)] for _ in range(3)]
        own = np.array([[seconds_of(of) for of in row] for row in held])
        now, walls = np.zeros(3), np.zeros((3, 3))
        for m in range(3):
            begin = now.copy()
            for _ in range(meetings):
                now = np.full(3, now.max()) + own[:, m] / meetings
            walls[:, m] = now - begin
        rows = [RanMicrobatch(r, m, 0.0, float(walls[r, m]), held[r][m]) for r in range(3) for m in range(3)]
        steps.append(RanStep(number, float(now.max()), tuple(rows)))
        computed, whole = computed + float(own.sum()), whole + 3 * float(now.max())
    found = broken_down(SeenRun("a test", 3, (0, 1, 2), tuple(steps)))
    assert found.share("compute") == pytest.approx(computed / whole, abs=0.01)
    assert found.share("untold") + found.share("transfer") < 0.01


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_rank_that_is_always_the_slowest_is_slow_and_how_much_more_so_is_not_told(seed, noise):
    """Seconds follow what it holds; what the others hold says how slow it is at least."""
    run, waited = watched("collective", pace=(1.0, 1.0, 1.0, 6.0), seed=seed, noise=noise)
    found = broken_down(run)
    assert found.share("lengths") + found.share("device") <= waited + 0.02
    assert 1.5 < found.ranks[3].pace < 6.1
    assert [rank.pace for rank in found.ranks[:3]] == [1.0, 1.0, 1.0]
    assert found.share("device") > 0.2
    assert any(re.search("rank 3 .*(5[4-9]|60) of 60", line) for line in found.cannot)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_no_rank_is_slow_that_is_not(seed, noise):
    found = broken_down(watched("collective", pace=(1.0,) * 4, seed=seed, noise=noise)[0])
    assert [rank.pace for rank in found.ranks] == [1.0] * 4
    assert not any(re.search(r"rank \d", line) for line in found.cannot)


def test_a_rank_that_is_late_in_every_meeting_is_not_called_late_on_no_rank_throughout():
    """Its compute is told, and takes longer by another factor each time: as if its lengths did not tell all."""
    run, _ = watched("collective", told=True)
    rng, steps = np.random.default_rng(0), []
    for step in run.steps:
        own = {(m.rank, m.number): m.seconds * (6 + 6 * rng.random() if m.rank == 2 else 1) for m in step.microbatches}
        rows = [replace(m, seconds=own[m.rank, m.number], wall=own[2, m.number]) for m in step.microbatches]
        steps.append(replace(step, microbatches=tuple(rows), seconds=sum(own[2, m] for m in range(3))))
    found = broken_down(replace(run, steps=tuple(steps)))
    assert found.share("untold") > 0.01
    assert any(re.search("rank 2 .*60 of 60", line) for line in found.cannot)
