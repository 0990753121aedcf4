"""Where the time went: idle and its parts, derived from spans alone, whoever produced them.

A gap is time in which a device's compute lane holds no compute. Every moment of a gap is told apart by what the lane
that the next compute needed was doing: waiting for a peer to come to a meeting, moving bytes, or nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.program import COMPUTE, EVERY, Program
from odcsim.results.gaps import Gap, begun, gaps
from odcsim.timeline import Block, Floats, Timeline

PARTS = ("wait_inside", "wait_end", "gather", "push", "other")
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


def measure(block: Block) -> Usage:
    """The usage of a block's minibatches."""
    return measure_rows(block.program, block.asked, block.had, range(len(block.program.steps)))


def measure_rows(program: Program, asked: Rows, had: Rows, order: Iterable[int], *, simulated: bool = False) -> Usage:
    """The usage of steps in their program's order. A step's rows are read when `order` names it, and as `uses` says.

    `simulated`: times follow each other as the program says, which several clocks do not promise.
    """
    every = gaps(program)
    compute, makespan, *lost = (np.zeros_like(asked[0]) for _ in range(6))
    parts = dict(zip(("wait_inside", "wait_end", "gather", "push"), lost, strict=True))
    spare = _Spare(*(np.empty_like(compute) for _ in range(4)))
    for i in order:
        step, gap = program.steps[i], every[i]
        if step.kind == "compute":
            compute += had[i]
            compute -= asked[i]
        if step.meets and step.lane == COMPUTE:
            parts["wait_end" if step.microbatch == EVERY else "wait_inside"] += begun(asked[i]) - asked[i]
        if gap.transfers:
            _attribute(program, gap, asked, had, asked[i], parts, spare, simulated)
        if gap.last:
            np.maximum(makespan, had[i], out=makespan)
    span: Floats = makespan.max(axis=1)
    sums = {name: _over_devices(seconds) for name, seconds in parts.items()}
    computed = _over_devices(compute)
    other = compute.shape[1] * span - computed - sum(sums.values())
    return Usage(span, computed, other=other, **sums)


class _Spare(NamedTuple):
    """Memory for what is worked out in between: taking it anew for every step would cost as much as the sums."""

    left: Floats
    done: Floats
    moved: Floats
    waited: Floats


def _over_devices(seconds: Floats) -> Floats:
    """Seconds summed over devices, to the same last bit however the rows lie in memory."""
    return np.asarray(np.ascontiguousarray(seconds).sum(axis=1))


@lru_cache(maxsize=256)
def uses(program: Program) -> tuple[int, ...]:
    """For each step the last one whose measuring reads its rows."""
    last = list(range(len(program.steps)))
    for i, gap in enumerate(gaps(program)):
        for read in (*gap.transfers, gap.before) if gap.transfers else ():
            last[read] = max(last[read], i)
    return tuple(last)


def _attribute(
    program: Program,
    gap: Gap,
    asked: Rows,
    had: Rows,
    end: Floats,
    parts: dict[str, Floats],
    spare: _Spare,
    simulated: bool,
) -> None:
    """Split the gap between the compute lane's previous step and `end` over what its transfers were doing."""
    start = had[gap.before] if gap.before >= 0 else np.zeros_like(end)
    left = np.subtract(end, start, out=spare.left)
    if not (left[0, 0] or left.any()):
        return
    lanes = {program.steps[t].lane for t in gap.transfers}
    last = max(gap.transfers) if simulated and len(lanes) == 1 else -1  # what the gap ends with
    for t in gap.transfers:
        transfer = program.steps[t]
        done = end if t == last else _within(had[t], start, None if simulated else end, spare.done)
        high = None if simulated else done
        moved = _within(begun(asked[t]) if transfer.meets else asked[t], start, high, spare.moved)
        moving = np.subtract(done, moved, out=spare.done)
        if len(lanes) > 1:  # transfers of one lane never overlap; those of two share the gap
            np.minimum(moving, left, out=moving)
            left -= moving
        parts[transfer.kind] += moving
        if transfer.meets:
            waited = _within(asked[t], start, None if simulated else moved, spare.waited)
            parts["wait_inside"] += np.subtract(moved, waited, out=moved)


def _within(times: Floats, low: Floats, high: Floats | None, out: Floats) -> Floats:
    """The times, moved to the nearer end where they lie outside. (np.clip takes several times as long.)"""
    np.maximum(times, low, out=out)
    return out if high is None else np.minimum(out, high, out=out)
