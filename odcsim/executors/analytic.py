"""The fast executor: a max-plus scan over a program's steps, all minibatches and devices at once.

A step starts when its lane is free and what it comes after is done, and for a meeting when that holds on every device.
Exact as long as nobody shares a link; the discrete-event executor agrees with it to the last bit there.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from odcsim.program import Program, by_steps
from odcsim.timeline import Floats

Rows = Sequence[Floats] | Floats


def run(program: Program, durations: Floats) -> tuple[Floats, Floats]:
    """Times asked and had [step, minibatch, device] from durations [row, minibatch, device]."""
    minibatches, devices = durations.shape[1:]
    asked, had = np.empty((2, len(program.steps), minibatches, devices))
    for _ in scan(program, durations, asked, had, np.empty((len(program.steps), minibatches, 1))):
        pass
    return asked, had


def scan(
    program: Program, durations: Floats, asked: Rows, had: Rows, begun: Rows, begin: Floats | float = 0.0
) -> Iterator[int]:
    """Fill the rows of `asked`, `had` and `begun` step by step, and name each step when its rows hold.

    `begun` has when each meeting stopped waiting [step, minibatch, 1]. `begin` is when each device may start.
    """
    seconds = list(durations)
    for i, (needs, meets, row) in enumerate(_issued(program)):
        ready = asked[i]
        if len(needs) > 1:
            np.maximum(had[needs[0]], had[needs[1]], out=ready)
            for other in needs[2:]:
                np.maximum(ready, had[other], out=ready)
        else:
            ready[...] = had[needs[0]] if needs else begin
        start = ready.max(axis=1, keepdims=True, out=begun[i]) if meets else ready
        np.add(start, seconds[row], out=had[i])
        yield i


@by_steps
def _issued(program: Program) -> tuple[tuple[tuple[int, ...], bool, int], ...]:
    """Of each step: what it needs, whether it is a meeting, and its row of durations."""
    every = zip(program.steps, program.previous_in_lane(), strict=True)
    return tuple(
        ((before, *step.after) if before >= 0 else step.after, step.meets, step.duration) for step, before in every
    )


def recycled(
    program: Program, durations: Floats, uses: Sequence[int], begin: Floats | float = 0.0
) -> tuple[Rows, Rows, Rows, Iterator[int]]:
    """A scan in rows that share memory once nothing needs them any more, so that they stay in the processor's cache:
    `asked`, `had`, `begun`, and the steps as their rows hold.

    `uses` tells for each step the last one at which the caller reads its rows.
    """
    shared, (minibatches, devices) = _shared(program, tuple(uses)), durations.shape[1:]
    count = max(shared) + 1
    asked, had = (list(_laid_out(np.empty((count, minibatches, devices)))) for _ in range(2))
    begun = list(np.empty((count, minibatches, 1)))
    rows = [asked[n] for n in shared], [had[n] for n in shared], [begun[n] for n in shared]
    return *rows, scan(program, _laid_out(durations), *rows, begin)


@by_steps
def _shared(program: Program, uses: tuple[int, ...]) -> tuple[int, ...]:
    """The number of each step's rows."""
    last = list(uses)
    for i, (needs, _, _) in enumerate(_issued(program)):
        for need in needs:
            last[need] = max(last[need], i)
    free: list[int] = []
    leaving: dict[int, list[int]] = {}
    numbers: list[int] = []
    count = 0
    for i, end in enumerate(last):
        number = free.pop() if free else count
        count = max(count, number + 1)
        numbers.append(number)
        leaving.setdefault(end, []).append(number)
        free += leaving.pop(i, [])
    return tuple(numbers)


def _laid_out(rows: Floats) -> Floats:
    """Rows [row, minibatch, device] with the longer axis last in memory.

    The maximum of a meeting runs over devices: over a few neighbours numpy takes five times as long as over columns.
    """
    if rows.shape[1] <= rows.shape[2]:
        return rows
    turned: Floats = np.ascontiguousarray(rows.swapaxes(1, 2)).swapaxes(1, 2)
    return turned


def settled(program: Program, durations: Floats, begin: Floats | float = 0.0) -> Floats:
    """When each device has computed and pushed everything [minibatch, device]."""
    end = program.end
    asked, *_, steps = recycled(program, durations, range(len(program.steps)), begin)
    next(i for i in steps if i == end)
    return asked[end].copy()
