"""Where the time went: idle and its parts, derived from spans alone, whoever produced them.

A gap is time in which a device's compute lane holds no compute. Every moment of a gap is told apart by what the lane
that the next compute needed was doing: waiting for a peer to come to a meeting, moving bytes, or nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.program import COMPUTE, EVERY, Program, by_steps
from odcsim.results.gaps import Gap, begun, gaps, uncovered
from odcsim.timeline import Block, Floats, Timeline

PARTS = ("wait_inside", "wait_end", "gather", "push", "other")
ROUNDING = 1e-12  # of all seconds: what is left of them where they were summed in another order
Rows = Sequence[Floats] | Floats  # times of each step [minibatch, device]


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds per minibatch, summed over devices where not said otherwise: compute + parts = devices x makespan."""

    makespan: Floats  # not a sum: when the last device was done
    compute: Floats
    wait_inside: Floats
    wait_end: Floats
    gather: Floats
    push: Floats
    other: Floats

    def idle(self) -> float:
        """Share of device time without compute, as a ratio of sums over the minibatches."""
        return sum(self.idle_parts().values())

    def idle_parts(self) -> dict[str, float]:
        lost = {part: float(getattr(self, part).sum()) for part in PARTS}
        total = float(self.compute.sum()) + sum(lost.values())
        return {part: seconds / total if total else 0.0 for part, seconds in lost.items()}


def usage(timeline: Timeline) -> Usage:
    """The usage of every minibatch, in the order of the schedule file."""
    return assemble([(block.minibatches, measure(block)) for block in timeline.blocks], len(timeline.samples))


def assemble(pieces: Iterable[tuple[NDArray[np.int64], Usage]], minibatches: int) -> Usage:
    """Put the usages of blocks back into the order of their minibatches."""
    whole = {field.name: np.zeros(minibatches) for field in fields(Usage)}
    for numbers, piece in pieces:
        for name, values in whole.items():
            values[numbers] = getattr(piece, name)
    return Usage(**whole)


def parted(whole: Usage, parts: int) -> list[Usage]:
    """Equal parts of it, in order."""
    pieces = {field.name: np.split(getattr(whole, field.name), parts) for field in fields(Usage)}
    return [Usage(**{name: of[i] for name, of in pieces.items()}) for i in range(parts)]


def joined(pieces: Sequence[Usage]) -> Usage:
    """Minibatches behind each other."""
    return Usage(
        **{field.name: np.concatenate([getattr(one, field.name) for one in pieces]) for field in fields(Usage)}
    )


def measure(block: Block) -> Usage:
    """The usage of a block's minibatches."""
    return measure_rows(block.program, block.asked, block.had, range(len(block.program.steps)))


def measure_rows(
    program: Program,
    asked: Rows,
    had: Rows,
    order: Iterable[int],
    begun: Rows | None = None,
    *,
    simulated: bool = False,
) -> Usage:
    """The usage of steps in their program's order. A step's rows are read when `order` names it, and as `uses` says.

    `begun`: when each meeting stopped waiting, where that is known. `simulated`: times follow each other as the program
    says, which several clocks do not promise.
    """
    compute, took, makespan, *lost = (np.zeros_like(asked[0]) for _ in range(7))
    parts = dict(zip(("wait_inside", "wait_end", "gather", "push"), lost, strict=True))
    times = _Times(asked, had, begun, *(np.empty_like(compute) for _ in range(4)))
    looks = _looks(program)
    for i in order:
        computes, waits, gap, last = looks[i]
        if computes:
            np.subtract(had[i], asked[i], out=took)  # first, so that a step of no length adds nothing
            np.add(compute, took, out=compute)
        if waits:
            parts[waits] += times.start(i) - asked[i]
        if gap:
            _attribute(gap, times, asked[i], parts, simulated)
        if last:
            np.maximum(makespan, had[i], out=makespan)
    span: Floats = makespan.max(axis=1)
    sums = {name: _over_devices(seconds) for name, seconds in parts.items()}
    computed = _over_devices(compute)
    whole = compute.shape[1] * span
    other = whole - computed - sum(sums.values())
    other[np.abs(other) <= ROUNDING * whole] = 0.0
    return Usage(span, computed, other=other, **sums)


def makespans(program: Program, had: Rows, order: Iterable[int]) -> Floats:
    """When the last device was done, alone: a row is read when `order` names its step."""
    makespan = np.zeros_like(had[0])
    every = gaps(program)
    for i in order:
        if every[i].last:
            np.maximum(makespan, had[i], out=makespan)
    span: Floats = makespan.max(axis=1)
    return span


class _Moved(NamedTuple):
    step: int
    kind: str
    meets: bool


class _Waited(NamedTuple):
    """What a step may have waited for, since the one before it in its lane (-1: there is none)."""

    before: int
    transfers: tuple[_Moved, ...]
    several: bool  # lanes: transfers of one lane never overlap, those of two share the gap
    ends_with: int  # what the gap ends with, where one lane has all of them, or -1
    meets: bool  # some of them wait for peers


@by_steps
def _looks(program: Program) -> tuple[tuple[bool, str, _Waited | None, bool], ...]:
    """Of each step what is measured: its compute, the part that its meeting is, its gap, whether its lane ends."""
    looks = []
    for step, gap in zip(program.steps, gaps(program), strict=True):
        waits = "wait_end" if step.microbatch == EVERY else "wait_inside"
        waits = waits if step.meets and step.lane == COMPUTE else ""
        looks.append((step.kind == "compute", waits, _waited(program, gap) if gap.transfers else None, gap.last))
    return tuple(looks)


def _waited(program: Program, gap: Gap) -> _Waited:
    steps = [(t, program.steps[t]) for t in gap.transfers]
    several = len({step.lane for _, step in steps}) > 1
    ends_with = -1 if several else max(gap.transfers)
    moved = tuple(_Moved(t, s.kind, s.meets) for t, s in steps)
    return _Waited(gap.before, moved, several, ends_with, any(step.meets for step in moved))


class _Times(NamedTuple):
    """Rows of times, and memory for what is worked out in between: taking it anew for every step would cost as much as
    the sums."""

    asked: Rows
    had: Rows
    begun: Rows | None
    left: Floats
    done: Floats
    moved: Floats
    waited: Floats

    def start(self, step: int) -> Floats:
        """When a meeting stopped waiting."""
        return begun(self.asked[step]) if self.begun is None else self.begun[step]


def _over_devices(seconds: Floats) -> Floats:
    """Seconds summed over devices, to the same last bit however the rows lie in memory."""
    return np.asarray(np.ascontiguousarray(seconds).sum(axis=1))


@by_steps
def uses(program: Program) -> tuple[int, ...]:
    """For each step the last one whose measuring reads its rows."""
    last = list(range(len(program.steps)))
    for i, gap in enumerate(gaps(program)):
        for read in (*gap.transfers, gap.before) if gap.transfers else ():
            last[read] = max(last[read], i)
    return tuple(last)


def _attribute(gap: _Waited, times: _Times, end: Floats, parts: dict[str, Floats], simulated: bool) -> None:
    """Split the gap between the compute lane's previous step and `end` over what its transfers were doing."""
    asked, had = times.asked, times.had
    start = had[gap.before] if gap.before >= 0 else np.zeros_like(end)
    left = np.subtract(end, start, out=times.left)
    if not (left[0, 0] or left.any()):
        return
    if gap.several and gap.meets:
        _share(gap, times, start, end, parts)
        return
    last = gap.ends_with if simulated else -1
    for t, kind, meets in gap.transfers:
        done = end if t == last else _within(had[t], start, None if simulated else end, times.done)
        high = None if simulated else done
        moved = _within(times.start(t) if meets else asked[t], start, high, times.moved)
        moving = np.subtract(done, moved, out=times.done)
        if gap.several:
            np.minimum(moving, left, out=moving)
            np.subtract(left, moving, out=left)
        part = parts[kind]
        np.add(part, moving, out=part)
        if meets:
            waited = _within(asked[t], start, None if simulated else moved, times.waited)
            inside = parts["wait_inside"]
            np.add(inside, np.subtract(moved, waited, out=moved), out=inside)


def _share(gap: _Waited, times: _Times, start: Floats, end: Floats, parts: dict[str, Floats]) -> None:
    """Of lanes that wait for peers beside each other: what moves has the gap first, gathers before pushes, and
    waiting what is left of it."""
    seen: list[tuple[Floats, Floats]] = []
    left = np.maximum(end - start, 0.0)
    met = {t: np.broadcast_to(times.start(t), end.shape) for t, _, meets in gap.transfers if meets}
    waits = [(times.asked[t], moved) for t, moved in met.items()]
    moves = [(kind, (met.get(t, times.asked[t]), times.had[t])) for t, kind, _ in gap.transfers]
    for part in ("gather", "push", "wait_inside"):
        seen += waits if part == "wait_inside" else [span for kind, span in moves if kind == part]
        rest = uncovered(start, end, seen)
        parts[part] += np.maximum(left - rest, 0.0)
        left = rest


def _within(times: Floats, low: Floats, high: Floats | None, out: Floats) -> Floats:
    """The times, moved to the nearer end where they lie outside. (np.clip takes several times as long.)"""
    np.maximum(times, low, out=out)
    return out if high is None else np.minimum(out, high, out=out)
