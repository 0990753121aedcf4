"""Where the time went: idle and its parts, derived from spans alone, whoever produced them.

A gap is time in which a device's compute lane holds no compute. Every moment of a gap is told apart by what the lane
that the next compute needed was doing: waiting for a peer to come to a meeting, moving bytes, or nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from odcsim.program import COMPUTE, EVERY, Program, Step, by_steps
from odcsim.timeline import Block, Floats, Ints, Timeline

PARTS = ("wait_inside", "wait_end", "gather", "push", "other")
TRANSFERS = ("gather", "push")  # kinds of steps
ROUNDING = 1e-12  # of all seconds: what is left of them where they were summed in another order
Rows = Sequence[Floats] | Floats  # times of each step [minibatch, device]
Span = tuple[Step, Floats, Floats, Floats]  # when a device came, when it moved bytes, and when it had them


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


COLUMNS = tuple(field.name for field in fields(Usage))


def join(pieces: Sequence[Usage]) -> Usage:
    """Minibatches behind each other."""
    return Usage(**{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in COLUMNS})


def split(usage: Usage, parts: int) -> list[Usage]:
    """Equal parts of it, in order."""
    pieces = {name: np.split(getattr(usage, name), parts) for name in COLUMNS}
    return [Usage(**{name: of[part] for name, of in pieces.items()}) for part in range(parts)]


def assemble(pieces: Iterable[tuple[Ints, Usage]], minibatches: int) -> Usage:
    """Put the usages of blocks back into the order of their minibatches."""
    columns = {name: np.zeros(minibatches) for name in COLUMNS}
    for numbers, piece in pieces:
        for name, column in columns.items():
            column[numbers] = getattr(piece, name)
    return Usage(**columns)


def usage(timeline: Timeline) -> Usage:
    """The usage of every minibatch, in the order of the schedule file."""
    return assemble([(block.minibatches, measure(block)) for block in timeline.blocks], len(timeline.samples))


def steps(timeline: Timeline, run: str) -> Iterator[dict[str, str | int | float]]:
    """A row for each minibatch, as trackers of experiments take them; idle and its parts are shares of device time.
    `run` tells it from others in one file."""
    each, devices = usage(timeline), timeline.about.devices
    elapsed = np.cumsum(each.makespan)
    for step, seconds in enumerate(each.makespan.tolist()):
        total = seconds * devices
        parts = {part: float(getattr(each, part)[step]) / total if total else 0.0 for part in PARTS}
        tokens = int(timeline.tokens[step])
        yield {
            "run": run,
            "step": step,
            "seconds": seconds,
            "elapsed": float(elapsed[step]),
            "samples": int(timeline.samples[step]),
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "idle": sum(parts.values()),
            **parts,
        }


@dataclass(frozen=True, slots=True)
class Gap:
    """Before a step of the compute lane; before those of other lanes nothing is waited for."""

    before: int  # the step before it on the compute lane, or -1
    transfers: tuple[int, ...]  # what it may have waited for: of several at once in flight the first has the gap
    several: bool  # lanes: transfers of one never overlap
    last: bool  # nothing follows in its lane


@by_steps
def gaps(program: Program) -> tuple[Gap, ...]:
    """The gap before every step: the one rule by which gaps of the compute lane are told apart.

    A lane works in order, so a step may have waited for the transfers it comes after, and for those before them in
    their lanes that no earlier step of the compute lane came after. In each lane the latest comes first.
    """
    steps, before, every = program.steps, -1, []
    lanes: dict[str, list[int]] = {step.lane: [] for step in steps}  # the steps so far ...
    covered = dict.fromkeys(lanes, 0)  # ... and how many of them a step of the compute lane came after
    ends = {step.lane: i for i, step in enumerate(steps)}
    for i, step in enumerate(steps):
        transfers: list[int] = []
        # Gathers first: where a gather and a push were in flight at once, the gap counts as the gather's.
        for need in sorted(step.after, key=lambda n: steps[n].kind != "gather") if step.lane == COMPUTE else ():
            lane = steps[need].lane
            upto = bisect_right(lanes[lane], need)
            transfers += [t for t in reversed(lanes[lane][covered[lane] : upto]) if steps[t].kind in TRANSFERS]
            covered[lane] = max(covered[lane], upto)
        several = len({steps[t].lane for t in transfers}) > 1
        every.append(Gap(before, tuple(transfers), several, ends[step.lane] == i))
        lanes[step.lane].append(i)
        before = i if step.lane == COMPUTE else before
    return tuple(every)


@by_steps
def uses(program: Program) -> tuple[int, ...]:
    """For each step the last one whose measuring reads its rows."""
    last = list(range(len(program.steps)))
    for i, gap in enumerate(gaps(program)):
        for read in (*gap.transfers, gap.before) if gap.transfers else ():
            last[read] = max(last[read], i)
    return tuple(last)


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
    steps, every = program.steps, gaps(program)
    nothing, compute, makespan = (np.zeros_like(asked[0]) for _ in range(3))
    parts = {part: np.zeros_like(compute) for part in PARTS[:-1]}
    left, stop, move, wait = (np.empty_like(compute) for _ in range(4))  # anew for each step they cost as much again

    def moving(i: int) -> Floats:
        """When a step stopped waiting for peers."""
        if not steps[i].meets:
            return asked[i]
        return np.asarray(asked[i].max(axis=1, keepdims=True) if begun is None else begun[i])

    for i in order:
        step, gap, end = steps[i], every[i], asked[i]
        if step.kind == "compute":
            np.add(compute, np.subtract(had[i], end, out=stop), out=compute)
        elif step.meets and step.lane == COMPUTE:
            parts["wait_end" if step.microbatch == EVERY else "wait_inside"] += moving(i) - end
        if gap.last:
            np.maximum(makespan, had[i], out=makespan)
        if not gap.transfers:
            continue
        start = had[gap.before] if gap.before >= 0 else nothing
        np.subtract(end, start, out=left)
        if not (left[0, 0] or left.any()):
            continue
        spans = [(steps[t], asked[t], moving(t), had[t]) for t in gap.transfers]
        if gap.several and any(transfer.meets for transfer, *_ in spans):
            _share(start, end, spans, parts)
            continue
        for transfer, came, began, served in spans:  # each within the gap; np.clip takes several times as long
            np.maximum(served, start, out=stop)
            np.maximum(began, start, out=move)
            if not simulated:
                np.minimum(stop, end, out=stop)
                np.minimum(move, stop, out=move)
            np.subtract(stop, move, out=stop)
            if gap.several:
                np.minimum(stop, left, out=stop)
                np.subtract(left, stop, out=left)
            np.add(parts[transfer.kind], stop, out=parts[transfer.kind])
            if transfer.meets:
                np.maximum(came, start, out=wait)
                if not simulated:
                    np.minimum(wait, move, out=wait)
                np.subtract(move, wait, out=move)
                np.add(parts["wait_inside"], move, out=parts["wait_inside"])
    # Over devices to the same last bit however the rows lie in memory.
    sums = {name: np.ascontiguousarray(of).sum(axis=1) for name, of in {"compute": compute, **parts}.items()}
    span = makespan.max(axis=1)
    total = compute.shape[1] * span
    other = total - sums["compute"] - sum(sums[part] for part in parts)
    other[np.abs(other) <= ROUNDING * total] = 0.0
    return Usage(makespan=span, other=other, **sums)


def _share(start: Floats, end: Floats, spans: Sequence[Span], parts: dict[str, Floats]) -> None:
    """Of lanes that wait for peers beside each other: what moves has the gap first, gathers before pushes, and waiting
    what is left of it."""
    waits = [(came, began) for step, came, began, _ in spans if step.meets]
    gathers, pushes = ([of[2:] for of in spans if of[0].kind == kind] for kind in ("gather", "push"))
    seen, left = list[tuple[Floats, Floats]](), np.maximum(end - start, 0.0)
    for part, more in (("gather", gathers), ("push", pushes), ("wait_inside", waits)):
        rest = uncovered(start, end, seen := seen + more)
        parts[part] += np.maximum(left - rest, 0.0)
        left = rest


def makespans(program: Program, had: Rows, order: Iterable[int]) -> Floats:
    """When the last device was done, alone: a row is read when `order` names its step."""
    makespan, every = np.zeros_like(had[0]), gaps(program)
    for i in order:
        if every[i].last:
            np.maximum(makespan, had[i], out=makespan)
    return np.asarray(makespan.max(axis=1))


def uncovered(start: Floats, end: Floats, spans: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Seconds from `start` to `end` that no span, (begin, end), covers; spans may overlap."""
    edges = zip((start, start), *spans, strict=True)
    begins, ends = (np.stack([np.broadcast_to(of, end.shape) for of in times]) for times in edges)
    order = np.argsort(begins, axis=0)
    reached, seconds = start, np.zeros_like(end)
    for begin, stop in zip(*(np.take_along_axis(times, order, axis=0) for times in (begins, ends)), strict=True):
        seconds += np.maximum(np.minimum(begin, end) - reached, 0.0)
        reached = np.maximum(reached, stop)
    return np.asarray(seconds + np.maximum(end - reached, 0.0))


def delays(block: Block) -> dict[int, Floats]:
    """Before each step of the compute lane: seconds in which the lane was idle, and no transfer that the step needs was
    under way or waited for peers.

    That is the machine's own work between two steps: the engine's copies, a launch, a scheduler's delay, and whatever
    kept it from giving a transfer to its lane any earlier.
    """
    return {
        i: uncovered(block.had[gap.before], block.asked[i], [(block.asked[t], block.had[t]) for t in gap.transfers])
        for i, gap in enumerate(gaps(block.program))
        if block.program.steps[i].lane == COMPUTE and gap.before >= 0
    }
