"""What every device was doing at every moment of a minibatch: what the Gantt chart and the Perfetto export draw.

Only here does waiting become something with a beginning and an end. Summed over the devices, the slices of a kind in
`metrics.PARTS` come to what `metrics` says of the minibatch; a test holds them equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from odcsim.program import COMPUTE, EVERY, Program, Step
from odcsim.timeline import Block, Floats

_PASS = {"embed": "forward", "embed backward": "backward"}  # the pass that the embedding's work is part of


@dataclass(frozen=True, slots=True)
class Slice:
    """A device's time from `start` to `end` (seconds). `what` is told to people, `kind` decides the colour."""

    kind: str  # forward | head | backward | overhead | optimizer | publish | meeting, or one of metrics.PARTS
    start: float
    end: float
    microbatch: int  # that of the step, or for a gap of the step it comes before
    what: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class View:
    """One minibatch on one device: the steps it really ran, and when."""

    program: Program
    steps: tuple[int, ...]
    asked: Floats  # [step]
    begun: Floats  # when the last device had asked, where the step meets; else as asked
    had: Floats
    end: float  # when the last device was done
    entries: dict[int, int]  # of the shared queue, by the microbatches that they became on this device

    def of_lane(self, lane: str) -> list[int]:
        return [i for i in self.steps if self.program.steps[i].lane == lane]

    def lanes(self) -> list[str]:
        """The lanes beside compute, in the order in which they are first used."""
        lanes = dict.fromkeys(step.lane for step in self.program.steps)
        return [lane for lane in lanes if lane != COMPUTE]


def view(block: Block, place: int, device: int) -> View:
    """`place` is where in the block the minibatch is."""
    asked, had = block.asked[:, place, device], block.had[:, place, device]
    meets = np.array([step.meets for step in block.program.steps], dtype=bool)
    begun = np.where(meets, block.asked[:, place].max(axis=1), asked)
    runs = tuple(i for i in range(len(meets)) if block.present(i)[place, device])
    end = float(block.had[:, place].max(initial=0.0))
    return View(block.program, runs, asked, begun, had, end, block.taken(place, device))


def microbatch_named(microbatch: int, entries: dict[int, int]) -> str:
    """What to call a microbatch: an entry of the shared queue by its number there, too."""
    taken = f" (queue entry {entries[microbatch]})" if microbatch in entries else ""
    return f"microbatch {microbatch}{taken}"


def compute_lane(seen: View) -> list[Slice]:
    """The compute lane from the minibatch's start to its end, without a hole: gaps are slices too."""
    causes = _Causes(seen)
    found: list[Slice] = []
    now = 0.0
    for i in seen.of_lane(COMPUTE):
        found += causes.before(i, now, float(seen.asked[i]))
        found += _split(seen, i)
        now = max(now, float(seen.had[i]))
    found.append(Slice("other", now, seen.end, EVERY, "done before the last device"))
    return [s for s in found if s.seconds > 0]


def transfer_lane(seen: View, lane: str) -> list[Slice]:
    """The slices of another lane: waiting for peers to come, then moving bytes."""
    slices = (s for i in seen.of_lane(lane) for s in _split(seen, i))
    return [s for s in slices if s.seconds > 0]


def kind_of(program: Program, step: Step) -> str:
    """What to call a step: a compute step by its pass, any other by its kind."""
    what = program.durations[step.duration][0]
    return _PASS.get(what, what) if step.kind == "compute" else step.kind


def _split(seen: View, i: int) -> Iterator[Slice]:
    step = seen.program.steps[i]
    what = _told(seen.program, step)
    asked, begun, had = float(seen.asked[i]), float(seen.begun[i]), float(seen.had[i])
    if step.meets:
        waiting = "wait_end" if step.microbatch == EVERY and step.lane == COMPUTE else "wait_inside"
        yield Slice(waiting, asked, begun, step.microbatch, f"waiting for peers: {what}")
    yield Slice(kind_of(seen.program, step), begun, had, step.microbatch, what)


def _told(program: Program, step: Step) -> str:
    if step.kind == "compute":
        what = program.durations[step.duration][0]
        return f"{what} layer {step.unit}" if step.unit > 0 else what
    unit = {0: " root", -1: " between nodes" if step.lane != COMPUTE else ""}.get(step.unit, f" layer {step.unit}")
    return f"{step.kind}{unit}"


class _Causes:
    """What other lanes were doing, to tell the gaps of the compute lane apart."""

    def __init__(self, seen: View) -> None:
        # Where a gather and a push are in flight at once, the gap counts as the gather's (so does metrics).
        rank = {"gather": 0, "push": 1, "wait_inside": 2}
        steps = [i for lane in seen.lanes() for i in seen.of_lane(lane)]
        found = [(i, s) for i in steps for s in _split(seen, i) if s.seconds > 0]
        found.sort(key=lambda pair: rank[pair[1].kind])
        self.steps = seen.program.steps
        self.doing = [(self.steps[i].lane, i, s) for i, s in found]
        self.starts = np.array([s.start for _, s in found])
        self.ends = np.array([s.end for _, s in found])

    def before(self, step: int, start: float, end: float) -> list[Slice]:
        """The gap before a step in pieces, each with the first cause that covers it, or none: `other`.

        A cause is what the step comes after, or holds that up by being earlier in its lane; not what merely runs.
        """
        if end <= start:
            return []
        needs = {self.steps[need].lane: need for need in self.steps[step].after}
        found = [self.doing[i] for i in np.flatnonzero((self.starts < end) & (self.ends > start))]
        near = [s for lane, i, s in found if i <= needs.get(lane, -1)]
        edges = {start, end} | {t for s in near for t in (s.start, s.end) if start < t < end}
        return [self._piece(near, a, b, self.steps[step].microbatch) for a, b in pairwise(sorted(edges))]

    def _piece(self, near: list[Slice], start: float, end: float, microbatch: int) -> Slice:
        cause = next((s for s in near if s.start <= start and s.end >= end), None)
        if cause is None:
            return Slice("other", start, end, microbatch, "nothing to do")
        what = cause.what if cause.kind == "wait_inside" else f"waiting for own {cause.what}"
        return Slice(cause.kind, start, end, microbatch, what)
