"""What every device was doing at every moment of a minibatch: what the Gantt chart and the Perfetto export draw.

Only here does waiting become something with a beginning and an end. Summed over the devices, the slices of a kind in
`metrics.PARTS` come to what `metrics` says of the minibatch; a test holds them equal.
"""

from dataclasses import dataclass
from itertools import pairwise

from odcsim.program import COMPUTE, EVERY, Program, Step
from odcsim.results.metrics import gaps
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

    def lanes(self) -> list[str]:
        """The lanes beside compute, in the order in which they are first used."""
        return [lane for lane in dict.fromkeys(step.lane for step in self.program.steps) if lane != COMPUTE]


def view(block: Block, place: int, device: int) -> View:
    """`place` is where in the block the minibatch is."""
    steps, count = block.program.steps, block.counts[place, device]
    begun = block.asked[:, place, device].copy()
    meets = [i for i, step in enumerate(steps) if step.meets]
    begun[meets] = block.asked[meets, place].max(axis=1)
    runs = tuple(i for i, step in enumerate(steps) if step.microbatch < count)
    asked, had = block.asked[:, place, device], block.had[:, place, device]
    end = float(block.had[:, place].max(initial=0.0))
    return View(block.program, runs, asked, begun, had, end, block.taken(place, device))


def microbatch_named(microbatch: int, entries: dict[int, int]) -> str:
    """What to call a microbatch: an entry of the shared queue by its number there, too."""
    taken = f" (queue entry {entries[microbatch]})" if microbatch in entries else ""
    return f"microbatch {microbatch}{taken}"


def kind_of(program: Program, step: Step) -> str:
    """What to call a step: a compute step by its pass, any other by its kind."""
    what = program.durations[step.duration][0]
    return _PASS.get(what, what) if step.kind == "compute" else step.kind


def compute_lane(seen: View) -> list[Slice]:
    """The compute lane from the minibatch's start to its end, without a hole: gaps are slices too. A moment of a gap
    has the first cause that covers it, or none: `other`."""
    slices, now, ran = list[Slice](), 0.0, set(seen.steps)
    causes: list[Slice] = []  # what a step that this device did not run would have waited for, the next one has
    for i, gap in enumerate(gaps(seen.program)):
        causes += [s for t in gap.transfers if t in ran for s in _split(seen, t)]
        if i not in ran or seen.program.steps[i].lane != COMPUTE:
            continue
        end, microbatch = float(seen.asked[i]), seen.program.steps[i].microbatch
        near = sorted((s for s in causes if s.start < end and s.end > now), key=lambda s: _RANK[s.kind])
        edges = {now, end} | {t for s in near for t in (s.start, s.end) if now < t < end}
        for a, b in pairwise(sorted(edges) if end > now else ()):
            cause = next((s for s in near if s.start <= a and s.end >= b), None)
            if cause is None:
                slices.append(Slice("other", a, b, microbatch, "nothing to do"))
            else:
                what = cause.what if cause.kind == "wait_inside" else f"waiting for own {cause.what}"
                slices.append(Slice(cause.kind, a, b, microbatch, what))
        slices += _split(seen, i)
        now, causes = max(now, float(seen.had[i])), []
    if seen.end > now:
        slices.append(Slice("other", now, seen.end, EVERY, "done before the last device"))
    return slices


def transfer_lane(seen: View, lane: str) -> list[Slice]:
    """The slices of another lane: waiting for peers to come, then moving bytes."""
    return [s for i in seen.steps if seen.program.steps[i].lane == lane for s in _split(seen, i)]


def _split(seen: View, i: int) -> list[Slice]:
    """A step: waiting for peers where it meets them, then its own work. What takes no time is left out."""
    step, kind = seen.program.steps[i], kind_of(seen.program, seen.program.steps[i])
    what, unit = step.kind, f" layer {step.unit}"
    if step.kind == "compute":
        what, unit = seen.program.durations[step.duration][0], unit if step.unit > 0 else ""
    elif step.unit <= 0:
        unit = " root" if step.unit == 0 else " between nodes" if step.lane != COMPUTE else ""
    what += unit
    waiting = "wait_end" if step.microbatch == EVERY and step.lane == COMPUTE else "wait_inside"
    asked, begun, had = float(seen.asked[i]), float(seen.begun[i]), float(seen.had[i])
    waits = Slice(waiting, asked, begun, step.microbatch, f"waiting for peers: {what}")
    return [s for s in (waits, Slice(kind, begun, had, step.microbatch, what)) if s.seconds > 0]
