"""The engine's recorded runs and simulated timelines as runs that exist: a minibatch is a step.

What a gap of the compute lane waited for is told by the rule of `results.metrics`. Waiting is not written down here:
whoever came to a meeting first has a longer piece in it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track
from odcsim.program import COMPUTE, Program
from odcsim.results.metrics import gaps
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.timeline import Block, Floats, Ints, Timeline

CELLS = 1024  # minibatches x devices that are cut into pieces at once
_DOES = {
    "compute": Doing.COMPUTE,
    "optimizer": Doing.COMPUTE,
    "overhead": Doing.HOST,
    "publish": Doing.TRANSFER,
    "meeting": Doing.MEETING,
}
_CALLED = {"gather": "all-gather", "push": "reduce-scatter", "meeting": "barrier"}
_EXECUTORS = {"engine": "a recorded run of the engine", "des": "a simulated run", "analytic": "a simulated run"}
Moments = NDArray[np.float64]  # [minibatch, device]


def run_of(timeline: Timeline, file: ScheduleFile) -> SeenRun:
    """The run of a timeline, and what its microbatches held."""
    about = timeline.about
    if about.digest != file.header.digest:
        raise InputError(
            f"schedule digest {file.header.digest} is not the timeline's {about.digest}",
            where="schedules",
            fix="give the schedule file that was run",
        )
    spans = np.zeros(len(timeline.samples))
    for block in timeline.blocks:
        spans[block.minibatches] = _ends(block)
    begins = np.cumsum(spans) - spans  # minibatches follow each other
    updates = list[float]()  # the longest of each minibatch
    for block in timeline.blocks:
        for i, step in enumerate(block.program.steps):
            if step.kind == "optimizer":
                updates += block.seconds(i).max(axis=1).tolist()
    steps = {step.number: step for block in timeline.blocks for step in _steps(block, file.schedules, begins)}
    return SeenRun(
        source=f"{_EXECUTORS[about.executor]} on {about.devices} devices",
        ranks=about.devices,
        seen=tuple(range(about.devices)),
        steps=tuple(steps[number] for number in sorted(steps)),
        sync=about.recipe.sync,
        layers=max((block.program.layers for block in timeline.blocks), default=0),
        updates=tuple(updates),
    )


def _ends(block: Block) -> Floats:
    ends: Floats = block.had.max(axis=(0, 2), initial=0.0)
    return ends


def _steps(block: Block, schedules: Sequence[Schedule], begins: Floats) -> Iterator[RanStep]:
    ran, ends = block.ran(schedules), _ends(block)
    computed, walls = _microbatches(block)
    stride = max(1, CELLS // block.counts.shape[1])
    for first in range(0, len(block.minibatches), stride):
        part = slice(first, first + stride)
        cut = _cut(block, part, ends[part])
        for place in range(first, min(first + stride, len(block.minibatches))):
            number, devices = int(block.minibatches[place]), block.counts.shape[1]
            begin, meetings = begins[number], list[Met]()
            for i in _met(block.program):
                came = dict(enumerate((block.asked[i, place] + begin).tolist()))
                done = float(block.had[i, place].max() + begin)
                meetings.append(Met(_CALLED[block.program.steps[i].kind], 0, devices, came, done))
            tracks = tuple(cut.track(place - first, device, begin) for device in range(devices))
            microbatches = tuple(_contents(ran[place], computed[:, place], walls[:, place]))
            yield RanStep(number, float(ends[place]), microbatches, tracks, tuple(meetings))


def _contents(schedule: Schedule, computed: Floats, walls: Floats) -> Iterator[RanMicrobatch]:
    for rank, of in enumerate(schedule.devices):
        for m, samples in enumerate(of):
            lengths, tokens = tuple(schedule.lengths[i] for i in samples), schedule.tokens(samples)
            yield RanMicrobatch(rank, m, float(computed[m, rank]), float(walls[m, rank]), lengths, tokens)


def _microbatches(block: Block) -> tuple[Floats, Floats]:
    """Compute, and seconds from the beginning to the end, of each [microbatch, minibatch, device]."""
    shape = (block.program.microbatches, *block.counts.shape)
    computed, first, last = np.zeros(shape), np.full(shape, np.inf), np.zeros(shape)
    for i, step in enumerate(block.program.steps):
        if step.lane == COMPUTE and step.microbatch >= 0:
            m = step.microbatch
            computed[m] += (block.had[i] - block.asked[i]) * (step.kind == "compute")
            first[m] = np.minimum(first[m], block.asked[i])
            last[m] = np.maximum(last[m], block.had[i])
    return computed, last - first


def _met(program: Program) -> list[int]:
    return [i for i, step in enumerate(program.steps) if step.meets]


class _CutTracks(NamedTuple):
    """Pieces of several minibatches at once, many of no length."""

    edges: Floats  # [piece + 1, minibatch, device]
    kinds: Ints
    meetings: Ints
    microbatches: Ints  # [piece]

    def track(self, place: int, device: int, begin: float) -> Track:
        edges = self.edges[:, place, device]
        long = np.flatnonzero(edges[1:] > edges[:-1])
        kinds, meetings = self.kinds[long, place, device], self.meetings[long, place, device]
        numbers = self.microbatches[long]
        new = np.ones(len(long), dtype=bool)
        new[1:] = (np.diff(kinds) != 0) | (np.diff(meetings) != 0) | (np.diff(numbers) != 0)
        ends = np.append(edges[long[new]], edges[-1]) + begin
        return Track(device, kinds[new], ends, meetings[new], numbers[new])


def _cut(block: Block, part: slice, ends: Floats) -> _CutTracks:
    """The compute lane from the minibatch's begin to its end, without a hole. What moves has a gap first, gathers
    before pushes, then waiting, then nothing."""
    program, asked, had = block.program, block.asked[:, part], block.had[:, part]
    counts, meetings = block.counts[part], {i: number for number, i in enumerate(_met(program))}
    edges, kinds, mets, microbatches = [np.zeros(counts.shape)], list[Ints](), list[Ints](), list[int]()

    def add(end: Moments, kind: Ints | int, meeting: Ints | int, microbatch: int) -> None:
        edges.append(end)
        kinds.append(np.broadcast_to(np.asarray(kind, dtype=np.int64), end.shape))
        mets.append(np.broadcast_to(np.asarray(meeting, dtype=np.int64), end.shape))
        microbatches.append(microbatch)

    before = np.zeros(counts.shape, dtype=bool)  # has begun to work
    waiting: list[int] = []  # what a step that some did not run would have waited for, the next one has
    for i, gap in enumerate(gaps(program)):
        step = program.steps[i]
        if step.lane != COMPUTE:
            continue
        runs, start = step.microbatch < counts, edges[-1]
        waiting += [t for t in gap.transfers if t not in waiting]
        end = np.where(runs, np.maximum(asked[i], start), start)
        if (end > start).any():
            spans: list[tuple[int, Moments, Moments, Doing, int]] = []  # rank, when, what that is called, the meeting
            for t in waiting:
                move = program.steps[t]
                moves = move.microbatch < counts
                low, high = (np.clip(np.where(moves, times[t], start), start, end) for times in (asked, had))
                does = Doing.TRANSFER
                if move.meets:
                    last = np.broadcast_to(asked[t].max(axis=1, keepdims=True), low.shape)
                    came, low, does = low, np.clip(last, low, high), Doing.MEETING
                    spans.append((2, came, low, does, meetings[t]))
                spans.append((0 if move.kind == "gather" else 1, low, high, does, meetings.get(t, NO)))
            spans.sort(key=lambda span: -span[0])
            idle = np.where(before, Doing.HOST, Doing.EDGE)
            for until in np.sort(np.stack([end, *(times for span in spans for times in span[1:3])]), axis=0):
                middle = (edges[-1] + until) / 2
                kind, meeting = idle, np.full(end.shape, NO)
                for _, low, high, does, number in spans:  # the last that covers it is the first in rank
                    covers = (low <= middle) & (middle <= high)
                    kind, meeting = np.where(covers, does, kind), np.where(covers, number, meeting)
                add(until, kind, meeting, step.microbatch)
        own = meetings.get(i, NO)
        add(np.where(runs, np.maximum(had[i], end), end), _DOES[step.kind], own, step.microbatch)
        before |= runs
        waiting = [] if runs.all() else [t for t in waiting if program.steps[t].microbatch != step.microbatch]
    add(np.maximum(ends[:, None], edges[-1]), Doing.EDGE, NO, NO)
    return _CutTracks(np.stack(edges), np.stack(kinds), np.stack(mets), np.array(microbatches, dtype=np.int64))
