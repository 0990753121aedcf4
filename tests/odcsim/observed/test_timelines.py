"""Laws of timelines as runs that exist: pieces fill every rank's step, and come to what metrics says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import ANYHOW, Case, cases

from odcsim.cluster import Cluster
from odcsim.errors import InputError
from odcsim.executors import analytic, des
from odcsim.observed.run import NO, Doing, SeenRun
from odcsim.observed.timelines import run_of
from odcsim.program import program
from odcsim.recipe import Recipe
from odcsim.results import metrics
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.timeline import About, Block, Timeline


def recorded(case: Case, run=analytic.run) -> tuple[Timeline, ScheduleFile]:
    """A case as a timeline of minibatches whose samples hold a token each, one in every microbatch."""
    b, devices = case.counts.shape
    ends = np.cumsum(case.counts, axis=1)
    schedules = tuple(
        Schedule(
            (1,) * int(ends[n, -1]),
            tuple(
                tuple((i,) for i in range(end - count, end)) for end, count in zip(ends[n], case.counts[n], strict=True)
            ),
        )
        for n in range(b)
    )
    file = ScheduleFile(Header("native", "a model", "a test", 10, devices), schedules).sealed()
    recipe = Recipe(sync=case.program.sync)
    about = About("des", recipe, "native", "a model", file.header.digest, "a test", "none", True, devices, 10)
    block = Block(case.program, np.arange(b), case.counts, *run(case.program, case.durations))
    return Timeline(about, (block,), ends[:, -1], ends[:, -1]), file


def seconds(run: SeenRun, number: int, *, optimizer: float = 0.0) -> dict[str, float]:
    """A step's seconds over all ranks by what metrics calls them."""
    step = run.steps[number]
    sums = {"compute": -optimizer, "waited": 0.0, "moved": 0.0}
    for track in step.tracks:
        for kind, meeting, start, end in zip(
            track.kinds, track.meetings, track.edges[:-1], track.edges[1:], strict=True
        ):
            if kind == Doing.MEETING:
                came = min(max(max(step.meetings[meeting].came.values()), start), end)
                sums["waited"] += came - start
                start = came
            name = {Doing.COMPUTE: "compute", Doing.MEETING: "moved", Doing.TRANSFER: "moved"}.get(Doing(kind))
            if name:
                sums[name] += end - start
    return sums


def agrees(case: Case, run=analytic.run) -> None:
    timeline, file = recorded(case, run)
    seen, used = run_of(timeline, file), metrics.usage(timeline)
    took = {i: timeline.blocks[0].had[i] - timeline.blocks[0].asked[i] for i in range(len(case.program.steps))}
    of_kind = {
        kind: sum((took[i].sum(axis=1) for i, s in enumerate(case.program.steps) if s.kind == kind), np.zeros(1))
        for kind in ("optimizer", "publish")
    }
    own_meeting = np.zeros(case.counts.shape[0])  # on the compute lane, from when the last came: metrics' `other`
    for i, step in enumerate(case.program.steps):
        if step.meets and step.lane == "compute":
            asked = timeline.blocks[0].asked[i]
            own_meeting += (timeline.blocks[0].had[i] - asked.max(axis=1, keepdims=True)).sum(axis=1)
    for n in range(case.counts.shape[0]):
        found = seconds(seen, n, optimizer=np.broadcast_to(of_kind["optimizer"], case.counts.shape[0])[n])
        beside = np.broadcast_to(of_kind["publish"], case.counts.shape[0])[n] + own_meeting[n]
        expected = {
            "compute": used.compute[n],
            "waited": used.wait_inside[n] + used.wait_end[n],
            "moved": used.gather[n] + used.push[n] + beside,
        }
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=200)
@given(cases(**ANYHOW))
def test_pieces_come_to_what_metrics_says(case):
    agrees(case)


@settings(max_examples=30)
@given(cases(devices=(4, 4), microbatches=(1, 2), **ANYHOW))
def test_pieces_come_to_what_metrics_says_on_shared_links_too(case):
    agrees(case, lambda steps, table: des.run(steps, table, Cluster(4, 2, 3e11, 2.5e10, 1)))


@settings(max_examples=100)
@given(cases(**ANYHOW))
def test_every_ranks_step_is_filled_from_its_begin_to_its_end(case):
    timeline, file = recorded(case)
    now = 0.0
    for number, step in enumerate(run_of(timeline, file).steps):
        assert step.number == number
        assert [track.rank for track in step.tracks] == list(range(timeline.about.devices))
        for track in step.tracks:
            assert track.edges[0] == pytest.approx(now)
            assert track.seconds == pytest.approx(step.seconds)
            assert (np.diff(track.edges) >= 0).all()
            assert len(track.kinds) == len(track.meetings) == len(track.microbatches) == len(track.edges) - 1
            assert ((track.meetings == NO) == (track.kinds != Doing.MEETING)).all()
        now += step.seconds


@settings(max_examples=100)
@given(cases(**ANYHOW))
def test_microbatches_are_those_of_the_schedule_and_take_what_their_compute_takes(case):
    timeline, file = recorded(case)
    for step in run_of(timeline, file).steps:
        held = [(r, m, (1,)) for r, count in enumerate(case.counts[step.number]) for m in range(count)]
        assert [(one.rank, one.number, one.lengths) for one in step.microbatches] == held
        computes = [i for i, s in enumerate(case.program.steps) if s.kind == "compute"]
        took = sum(timeline.blocks[0].had[i, step.number] - timeline.blocks[0].asked[i, step.number] for i in computes)
        assert sum(one.seconds for one in step.microbatches) == pytest.approx(np.sum(took), abs=1e-9)
        assert all(one.wall >= one.seconds - 1e-9 for one in step.microbatches)


@given(cases(**ANYHOW))
def test_a_meeting_has_everybody_and_ends_when_the_last_has_it(case):
    timeline, file = recorded(case)
    [block], begin = timeline.blocks, 0.0
    for step in run_of(timeline, file).steps:
        meets = [i for i, s in enumerate(case.program.steps) if s.meets]
        assert len(step.meetings) == len(meets)
        for i, met in zip(meets, step.meetings, strict=True):
            assert list(met.came.values()) == pytest.approx((block.asked[i, step.number] + begin).tolist())
            assert met.done == pytest.approx(block.had[i, step.number].max() + begin)
            called = {"gather": "all-gather", "push": "reduce-scatter", "meeting": "barrier"}
            assert met.kind == called[case.program.steps[i].kind]
        begin += step.seconds


def test_the_schedules_of_another_run_are_refused():
    steps = program(1, 1, "collective")
    timeline, file = recorded(Case(steps, np.ones((1, 2), dtype=int), np.ones((len(steps.durations), 1, 2))))
    other = replace(file, header=replace(file.header, digest="0"))
    with pytest.raises(InputError, match="schedule digest 0 is not the timeline's"):
        run_of(timeline, other)
