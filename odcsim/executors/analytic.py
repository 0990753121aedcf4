"""The fast executor: a max-plus scan over a program's steps, all minibatches and devices at once.

A step starts when its lane is free and what it comes after is done, and for a meeting when that holds on every device.
Exact as long as nobody shares a link; the discrete-event executor agrees with it to the last bit there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from odcsim.program import Program, by_steps
from odcsim.timeline import Floats, Ints, padded

PIECE = 4096  # entries of queues scanned at once: their rows stay in the cache
ROUNDING = 2.0**-52
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


def finish(program: Program, durations: Floats, begin: Floats | float = 0.0) -> Floats:
    """When each device has computed and pushed everything [minibatch, device]."""
    end = program.end
    asked, *_, steps = recycled(program, durations, range(len(program.steps)), begin)
    next(i for i in steps if i == end)
    return asked[end].copy()


@dataclass(frozen=True, slots=True)
class Entries:
    """Those of the queues of all minibatches, one after the other, as microbatches of each kind of device."""

    counts: Sequence[int]  # entries of each minibatch
    seconds: Floats  # [row of the entry's program, entry, kind]
    kinds: Ints  # of each device


def take(program: Program, durations: Floats, entry: Program, entries: Entries) -> Ints:
    """Which device takes each entry of a shared queue [minibatch, entry], -1 where a minibatch has fewer than others,
    found without running everything else beside it.

    How long an entry keeps a device does not depend on when it begins, since nobody meets inside a microbatch. So one
    scan over all entries of all minibatches tells it, and then the moments at which devices ask: who asks first takes
    the next entry, of several the lowest number.

    `durations` are of what the devices do before they ask. `entry` is a program of one microbatch. A device asks when
    its pushes are done and so is all else, so nothing but that moment carries over into its next microbatch.
    """
    free = finish(program, durations)
    pieces = range(0, entries.seconds.shape[1], PIECE)
    spans = [finish(entry, entries.seconds[:, first : first + PIECE]) for first in pieces]
    every = np.concatenate(spans) if spans else np.zeros((0, entries.seconds.shape[2]))
    takers, first = [], 0
    for count, times in zip(entries.counts, free, strict=True):
        here = slice(first, first + count)
        takers.append(_takers(entry, entries.seconds[:, here], entries.kinds, times, every[here]))
        first += count
    return padded(takers)


def _takers(entry: Program, seconds: Floats, kinds: Ints, moments: Floats, spans: Floats) -> list[int]:
    """Of one minibatch, in blocks: who asks first takes one entry, who asks next the next one, as many as do so before
    any of them asks again, and by more than a rounding. `moments`: when each device asks, as a run has it.

    Such a moment is a sum of spans here, and the sum of every step in a run. The two differ in their last bits, which
    matter where devices ask at one moment: samples that were cut at a limit are equally long, and so are microbatches
    whose transfers take longer than their compute; devices that have run the same ones in another order ask within a
    rounding of each other. Where moments are that close, what devices have taken so far is run step by step, so that
    the takers are those of a run to the last bit.

    `since` has what was taken since all moments were as a run has them, a block after the other: devices and entries.
    """
    rounding = 4 * ROUNDING * (len(entry.steps) + 1)  # of a sum, for each entry in it
    takers, times, since = np.empty(len(spans), dtype=np.int64), moments.copy(), list[tuple[Ints, Ints]]()
    order, at, exact = times.argsort(kind="stable"), 0, inf  # all moments before `exact` are as a run has them
    while at < len(spans):
        devices = order[: len(spans) - at]
        asked = times[devices]
        after = asked + spans[np.arange(at, at + len(devices)), kinds[devices]]
        again = np.concatenate(([inf], np.minimum.accumulate(after)[:-1]))
        following = np.append(times[order[1 : len(devices) + 1]], inf)[: len(devices)]
        close = asked + asked * (rounding * (len(since) + 2))  # nobody took more than one in a block
        doubt = (close >= np.minimum(exact, again)) & (np.minimum(following, again) <= close)
        many = int(doubt.argmax()) if doubt.any() else len(devices)
        if not many:
            moments = _rerun(entry, seconds, kinds, moments, since)
            times, since, exact = moments.copy(), [], inf
            order = times.argsort(kind="stable")
            continue
        taken, entries, after = devices[:many], np.arange(at, at + many), after[:many]
        takers[entries], times[taken] = taken, after
        since.append((taken, entries))
        exact, at = min(exact, float(after.min())), at + many
        rest = np.concatenate((order[many:], taken[after.argsort(kind="stable")]))
        order = rest[times[rest].argsort(kind="stable")]
    return takers.tolist()


def _rerun(entry: Program, seconds: Floats, kinds: Ints, moments: Floats, since: Sequence[tuple[Ints, Ints]]) -> Floats:
    """When devices ask, after what they have taken is run step by step."""
    devices, entries = (np.concatenate(of) for of in zip(*since, strict=True))
    order, counts, moments = devices.argsort(kind="stable"), np.bincount(devices), moments.copy()
    turns = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
    for turn in range(int(counts.max())):
        here = order[turns == turn]
        running = devices[here]
        took = seconds[:, entries[here], kinds[running]]
        moments[running] = finish(entry, took[:, :, None], moments[running, None])[:, 0]
    return moments
