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
    begins = _begins(timeline)
    steps = {step.number: step for block in timeline.blocks for step in _steps(block, file.schedules, begins)}
    return SeenRun(
        source=f"{_EXECUTORS[about.executor]} on {about.devices} devices",
        ranks=about.devices,
        seen=tuple(range(about.devices)),
        steps=tuple(steps[number] for number in sorted(steps)),
        sync=about.recipe.sync,
        layers=max((block.program.layers for block in timeline.blocks), default=0),
        updates=tuple(_updates(timeline)),
    )


def _begins(timeline: Timeline) -> Floats:
    """When each minibatch begins: they follow each other."""
    spans = np.zeros(len(timeline.samples))
    for block in timeline.blocks:
        spans[block.minibatches] = _ends(block)
    return np.cumsum(spans) - spans


def _ends(block: Block) -> Floats:
    ends: Floats = block.had.max(axis=(0, 2), initial=0.0)
    return ends


def _updates(timeline: Timeline) -> Iterator[float]:
    """The longest of each minibatch."""
    for block in timeline.blocks:
        for i, step in enumerate(block.program.steps):
            if step.kind == "optimizer":
                yield from block.seconds(i).max(axis=1).tolist()


def _steps(block: Block, schedules: Sequence[Schedule], begins: Floats) -> Iterator[RanStep]:
    ran, ends = block.ran(schedules), _ends(block)
    computed, walls = _microbatches(block)
    stride = max(1, CELLS // block.counts.shape[1])
    for first in range(0, len(block.minibatches), stride):
        part = slice(first, first + stride)
        cut = _cut(block, part, ends[part])
        for place in range(first, min(first + stride, len(block.minibatches))):
            number = int(block.minibatches[place])
            yield RanStep(
                number,
                float(ends[place]),
                tuple(_held(ran[place], computed[:, place], walls[:, place])),
                tuple(cut.track(place - first, device, begins[number]) for device in range(block.counts.shape[1])),
                tuple(_meetings(block, place, begins[number])),
            )


def _held(schedule: Schedule, computed: Floats, walls: Floats) -> Iterator[RanMicrobatch]:
    for rank, of in enumerate(schedule.devices):
        for m, samples in enumerate(of):
            lengths = tuple(schedule.lengths[i] for i in samples)
            seconds, wall = float(computed[m, rank]), float(walls[m, rank])
            yield RanMicrobatch(rank, m, seconds, wall, lengths, schedule.tokens(samples))


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


def _meetings(block: Block, place: int, begin: float) -> Iterator[Met]:
    devices = block.counts.shape[1]
    for i in _met(block.program):
        came = dict(enumerate((block.asked[i, place] + begin).tolist()))
        yield Met(_CALLED[block.program.steps[i].kind], 0, devices, came, float(block.had[i, place].max() + begin))


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
    """The compute lane from the minibatch's begin to its end, without a hole."""
    program, asked, had = block.program, block.asked[:, part], block.had[:, part]
    counts = block.counts[part]
    pieces = _Cutting(np.zeros(counts.shape))
    moving = _Gaps(program, asked, had, counts, {i: number for number, i in enumerate(_met(program))})
    before = np.zeros(counts.shape, dtype=bool)  # has begun to work
    waiting: list[int] = []  # what a step that some did not run would have waited for, the next one has
    for i, gap in enumerate(gaps(program)):
        step = program.steps[i]
        if step.lane != COMPUTE:
            continue
        runs = step.microbatch < counts
        waiting += [t for t in gap.transfers if t not in waiting]
        end = np.where(runs, np.maximum(asked[i], pieces.now), pieces.now)
        moving.split(pieces, waiting, end, np.where(before, Doing.HOST, Doing.EDGE), step.microbatch)
        own = moving.number.get(i, NO)
        pieces.add(np.where(runs, np.maximum(had[i], end), end), _DOES[step.kind], own, step.microbatch)
        before |= runs
        waiting = [] if runs.all() else [t for t in waiting if program.steps[t].microbatch != step.microbatch]
    pieces.add(np.maximum(ends[:, None], pieces.now), Doing.EDGE, NO, NO)
    return pieces.whole()


class _Cutting:
    """Appends pieces, each from where the one before it ended."""

    def __init__(self, begin: Moments) -> None:
        self.edges, self.now = [begin], begin
        self.kinds: list[Ints] = []
        self.meetings: list[Ints] = []
        self.microbatches: list[int] = []

    def add(self, end: Moments, kind: Ints | int, meeting: Ints | int, microbatch: int) -> None:
        self.now = end
        self.edges.append(end)
        self.kinds.append(np.broadcast_to(np.asarray(kind, dtype=np.int64), end.shape))
        self.meetings.append(np.broadcast_to(np.asarray(meeting, dtype=np.int64), end.shape))
        self.microbatches.append(microbatch)

    def whole(self) -> _CutTracks:
        pieces = np.array(self.microbatches, dtype=np.int64)
        return _CutTracks(np.stack(self.edges), np.stack(self.kinds), np.stack(self.meetings), pieces)


class _Gaps(NamedTuple):
    program: Program
    asked: Floats
    had: Floats
    counts: Ints
    number: dict[int, int]  # of each step that is a meeting

    def split(self, pieces: _Cutting, transfers: list[int], end: Moments, idle: Ints, microbatch: int) -> None:
        """The gap up to `end`: what moves has it first, gathers before pushes, then waiting, then nothing."""
        start = pieces.now
        if not (end > start).any():
            return
        spans = sorted(self._spans(transfers, start, end), key=lambda span: -span[0])
        bounds = np.sort(np.stack([end, *(times for span in spans for times in span[1:3])]), axis=0)
        for until in bounds:
            middle = (pieces.now + until) / 2
            kind, meeting = idle, np.full(end.shape, NO)
            for _, low, high, does, number in spans:  # the last that covers it is the first in rank
                covers = (low <= middle) & (middle <= high)
                kind, meeting = np.where(covers, does, kind), np.where(covers, number, meeting)
            pieces.add(until, kind, meeting, microbatch)

    def _spans(
        self, transfers: list[int], start: Moments, end: Moments
    ) -> Iterator[tuple[int, Moments, Moments, int, int]]:
        """Of each transfer its rank, when it waits and when it moves, what that is called, and the meeting."""
        for t in transfers:
            step = self.program.steps[t]
            runs = step.microbatch < self.counts
            low, high = (np.clip(np.where(runs, times[t], start), start, end) for times in (self.asked, self.had))
            does, rank = Doing.TRANSFER, 0 if step.kind == "gather" else 1
            if step.meets:
                last = np.broadcast_to(self.asked[t].max(axis=1, keepdims=True), low.shape)
                came, low = low, np.clip(last, low, high)
                does = Doing.MEETING
                yield 2, came, low, does, self.number[t]
            yield rank, low, high, does, self.number.get(t, NO)
