"""What every device was doing at every moment of a minibatch: what the Gantt chart and the Perfetto export draw.

Only here does waiting become something with a beginning and an end. Summed over the devices, the slices of a kind in
`metrics.PARTS` come to what `metrics` says of the minibatch; a test holds them equal.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from odcsim.program import COMPUTE, EVERY, Program, Step
from odcsim.results.gaps import begun, gaps
from odcsim.timeline import Block, Floats

# Where a gather and a push are in flight at once, the gap counts as the gather's.
_RANK = {"gather": 0, "push": 1, "wait_inside": 2}
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
    steps, count = block.program.steps, block.counts[place, device]
    moved = asked.copy()
    meets = [i for i, step in enumerate(steps) if step.meets]
    moved[meets] = begun(block.asked[meets, place])[:, 0]
    runs = tuple(i for i, step in enumerate(steps) if step.microbatch < count)
    end = float(block.had[:, place].max(initial=0.0))
    return View(block.program, runs, asked, moved, had, end, block.taken(place, device))


def microbatch_named(microbatch: int, entries: dict[int, int]) -> str:
    """What to call a microbatch: an entry of the shared queue by its number there, too."""
    taken = f" (queue entry {entries[microbatch]})" if microbatch in entries else ""
    return f"microbatch {microbatch}{taken}"


def compute_lane(seen: View) -> list[Slice]:
    """The compute lane from the minibatch's start to its end, without a hole: gaps are slices too."""
    slices: list[Slice] = []
    now, ran, causes = 0.0, set(seen.steps), list[Slice]()
    for i, gap in enumerate(gaps(seen.program)):
        # What a step that this device did not run would have waited for, the next one has.
        causes += [s for t in gap.transfers if t in ran for s in _split(seen, t) if s.seconds > 0]
        if i in ran and seen.program.steps[i].lane == COMPUTE:
            slices += _gap(causes, now, float(seen.asked[i]), seen.program.steps[i].microbatch)
            slices += _split(seen, i)
            now, causes = max(now, float(seen.had[i])), []
    slices.append(Slice("other", now, seen.end, EVERY, "done before the last device"))
    return [s for s in slices if s.seconds > 0]


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
    what = _words(seen.program, step)
    asked, begun, had = float(seen.asked[i]), float(seen.begun[i]), float(seen.had[i])
    if step.meets:
        waiting = "wait_end" if step.microbatch == EVERY and step.lane == COMPUTE else "wait_inside"
        yield Slice(waiting, asked, begun, step.microbatch, f"waiting for peers: {what}")
    yield Slice(kind_of(seen.program, step), begun, had, step.microbatch, what)


def _words(program: Program, step: Step) -> str:
    if step.kind == "compute":
        what = program.durations[step.duration][0]
        return f"{what} layer {step.unit}" if step.unit > 0 else what
    unit = {0: " root", -1: " between nodes" if step.lane != COMPUTE else ""}.get(step.unit, f" layer {step.unit}")
    return f"{step.kind}{unit}"


def _gap(causes: Iterable[Slice], start: float, end: float, microbatch: int) -> Iterator[Slice]:
    """A gap in pieces, each with the first cause that covers it, or none: `other`."""
    if end <= start:
        return
    near = sorted((s for s in causes if s.start < end and s.end > start), key=lambda s: _RANK[s.kind])
    edges = {start, end} | {t for s in near for t in (s.start, s.end) if start < t < end}
    for a, b in pairwise(sorted(edges)):
        yield _piece(near, a, b, microbatch)


def _piece(near: list[Slice], start: float, end: float, microbatch: int) -> Slice:
    cause = next((s for s in near if s.start <= start and s.end >= end), None)
    if cause is None:
        return Slice("other", start, end, microbatch, "nothing to do")
    what = cause.what if cause.kind == "wait_inside" else f"waiting for own {cause.what}"
    return Slice(cause.kind, start, end, microbatch, what)
