"""Laws of timelines as runs that exist: pieces fill every rank's step, and come to what metrics says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import ANYHOW, Case, cases

from odcsim.cluster import Cluster
from odcsim.errors import InputError
from odcsim.executors import analytic, des
from odcsim.observed.run import NO, Doing, RanStep
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
    schedules = []
    for last, counts in zip(ends, case.counts, strict=True):
        spans = zip(last - counts, last, strict=True)
        held = tuple(tuple((i,) for i in range(begin, end)) for begin, end in spans)
        schedules.append(Schedule.of((1,) * int(last[-1]), held))
    file = ScheduleFile(Header("native", "a model", "a test", 10, devices), tuple(schedules)).sealed()
    recipe = Recipe(sync=case.program.sync)
    about = About("des", recipe, "native", "a model", file.header.digest, "a test", "none", True, devices, 10)
    block = Block(case.program, np.arange(b), case.counts, *run(case.program, case.durations))
    return Timeline(about, (block,), ends[:, -1], ends[:, -1]), file


def seconds(step: RanStep) -> dict[str, float]:
    """A step's seconds over all ranks by what metrics calls them: of a meeting, those before the last came wait."""
    sums = {"compute": 0.0, "waited": 0.0, "moved": 0.0}
    names = {Doing.COMPUTE: "compute", Doing.MEETING: "moved", Doing.TRANSFER: "moved"}
    for track in step.tracks:
        pieces = zip(track.kinds, track.meetings, track.edges[:-1], track.edges[1:], strict=True)
        for kind, meeting, start, end in pieces:
            came = start
            if kind == Doing.MEETING:
                came = min(max(max(step.meetings[meeting].came.values()), start), end)
                sums["waited"] += came - start
            if name := names.get(Doing(kind)):
                sums[name] += end - came
    return sums


def holds(case: Case, run=analytic.run) -> None:
    """All laws of a run: they need the same one."""
    timeline, file = recorded(case, run)
    seen, used, [block], begin = run_of(timeline, file), metrics.usage(timeline), timeline.blocks, 0.0
    steps, took = case.program.steps, block.had - block.asked
    own = {kind: [i for i, s in enumerate(steps) if s.kind == kind] for kind in ("compute", "optimizer", "publish")}
    meets = [i for i, s in enumerate(steps) if s.meets]
    # On the compute lane, a meeting from when the last came is metrics' `other`, and so are these.
    other = took[own["publish"]].sum(axis=(0, 2)) + sum(
        (block.had[i] - block.asked[i].max(axis=1, keepdims=True)).sum(axis=1)
        for i in meets if steps[i].lane == "compute"
    )  # fmt: skip
    assert [step.number for step in seen.steps] == list(range(case.counts.shape[0]))
    moved = used.gather + used.push + other
    for n, step in enumerate(seen.steps):
        sums = {"compute": used.compute[n] + took[own["optimizer"], n].sum(), "moved": moved[n]}
        sums["waited"] = used.wait_inside[n] + used.wait_end[n]
        assert seconds(step) == pytest.approx(sums, rel=1e-9, abs=1e-9)
        assert [track.rank for track in step.tracks] == list(range(timeline.about.devices))
        for track in step.tracks:
            assert track.edges[0] == pytest.approx(begin)
            assert track.seconds == pytest.approx(step.seconds)
            assert (np.diff(track.edges) >= 0).all()
            assert len(track.kinds) == len(track.meetings) == len(track.microbatches) == len(track.edges) - 1
            assert ((track.meetings == NO) == (track.kinds != Doing.MEETING)).all()
        held = [(r, m, (1,)) for r, count in enumerate(case.counts[n]) for m in range(count)]
        assert [(one.rank, one.number, one.lengths) for one in step.microbatches] == held
        assert sum(one.seconds for one in step.microbatches) == pytest.approx(took[own["compute"], n].sum(), abs=1e-9)
        assert all(one.wall >= one.seconds - 1e-9 for one in step.microbatches)
        for i, met in zip(meets, step.meetings, strict=True):
            assert list(met.came.values()) == pytest.approx((block.asked[i, n] + begin).tolist())
            assert met.done == pytest.approx(block.had[i, n].max() + begin)
            assert met.kind == {"gather": "all-gather", "push": "reduce-scatter", "meeting": "barrier"}[steps[i].kind]
        begin += step.seconds
    assert seen.updates == pytest.approx(took[own["optimizer"]].max(axis=2).ravel())


@settings(max_examples=150)
@given(cases(**ANYHOW))
def test_pieces_fill_every_step_and_come_to_what_metrics_says(case):
    holds(case)


@settings(max_examples=25)
@given(cases(devices=(4, 4), microbatches=(1, 2), **ANYHOW))
def test_so_they_do_on_shared_links(case):
    holds(case, lambda steps, table: des.run(steps, table, Cluster(4, 2, 3e11, 2.5e10, 1))[:2])


def test_the_schedules_of_another_run_are_refused():
    steps = program(1, 1, "collective")
    timeline, file = recorded(Case(steps, np.ones((1, 2), dtype=int), np.ones((len(steps.durations), 1, 2))))
    with pytest.raises(InputError):
        run_of(timeline, replace(file, header=replace(file.header, digest="0")))
