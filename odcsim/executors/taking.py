"""Who takes what from the queues that devices share, found without running everything else beside it.

How long an entry keeps a device does not depend on when it begins, since nobody meets inside a microbatch. So one scan
over all entries of all minibatches tells it, and then a heap over the moments at which devices ask: who asks first
takes the next entry, of several the lowest number.

Such a moment is a sum of spans here, and the sum of every step in a run. The two differ in their last bits, which
matter where devices ask at one moment: samples that were cut at a limit are equally long, and so are microbatches whose
transfers take longer than their compute; devices that have run the same ones in another order ask within a rounding of
each other. Where moments are that close, what devices have taken so far is run step by step, so that the takers are
those of a run to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import inf

import numpy as np

from odcsim.executors.analytic import settled
from odcsim.program import Program
from odcsim.timeline import Floats, Ints, padded

PIECE = 4096  # entries scanned at once: their rows stay in the cache
ROUNDING = 2.0**-52
MANY = 256  # devices from which on arrays are quicker than a heap


@dataclass(frozen=True, slots=True)
class Queues:
    """The entries of all minibatches one after the other, as microbatches of each kind of device."""

    counts: Sequence[int]  # entries of each minibatch
    seconds: Floats  # [row of the entry's program, entry, kind]
    kinds: Ints  # of each device


def take(program: Program, durations: Floats, entry: Program, queues: Queues) -> Ints:
    """Which device takes each entry [minibatch, entry], -1 where a minibatch has fewer than others.

    `durations` are of what the devices do before they ask. `entry` is a program of one microbatch. A device asks when
    its pushes are done and so is all else, so nothing but that moment carries over into its next microbatch.
    """
    free = settled(program, durations)
    pieces = range(0, queues.seconds.shape[1], PIECE)
    spans = [settled(entry, queues.seconds[:, first : first + PIECE]) for first in pieces]
    every = np.concatenate(spans) if spans else np.zeros((0, queues.seconds.shape[2]))
    takers, first = [], 0
    for count, times in zip(queues.counts, free, strict=True):
        here = slice(first, first + count)
        asking = _InBlocks if len(times) >= MANY else _Asking
        takers.append(asking(entry, queues.seconds[:, here], queues.kinds, times).takers(every[here]))
        first += count
    return padded(takers)


class _Asking:
    """The heap of one minibatch's devices by the moments at which they ask, and what they took since a known one."""

    def __init__(self, entry: Program, seconds: Floats, kinds: Ints, times: Floats) -> None:
        self.entry, self.seconds, self.kinds = entry, seconds, kinds.tolist()
        self.known: list[float] = times.tolist()  # as a run has it, before the entries in `since`
        self.since: list[list[int]] = [[] for _ in self.known]
        self.heap = [(time, device) for device, time in enumerate(self.known)]
        heapify(self.heap)

    def takers(self, spans: Floats) -> Sequence[int]:
        heap, since, kinds, rows = self.heap, self.since, self.kinds, spans.tolist()
        several, longest = len(heap) > 1, 0
        each = _rounding(self.entry)
        margin = each
        exact = inf  # all moments before this one are as a run has them
        found: list[int] = []
        for number, row in enumerate(rows):
            time = heap[0][0]
            close = time + time * margin
            if close >= exact and several and (heap[1][0] <= close or (len(heap) > 2 and heap[2][0] <= close)):
                self._settle()
                exact = inf
            time, device = heap[0]
            found.append(device)
            mine = since[device]
            mine.append(number)
            if len(mine) > longest:
                longest = len(mine)
                margin = each * (longest + 1)
            time += row[kinds[device]]
            if time < exact:
                exact = time
            heapreplace(heap, (time, device))
        return found

    def _settle(self) -> None:
        """Run step by step what devices have taken: of all, since then nothing is in doubt before the next is done."""
        late = [device for device, taken in enumerate(self.since) if taken]
        for place in range(max(map(len, self.since))):
            running = [device for device in late if place < len(self.since[device])]
            entries = [self.since[device][place] for device in running]
            seconds = self.seconds[:, entries, [self.kinds[device] for device in running]]
            begin = np.array([self.known[device] for device in running])[:, None]
            done = settled(self.entry, seconds[:, :, None], begin)
            for device, time in zip(running, done[:, 0].tolist(), strict=True):
                self.known[device] = time
        for device in late:
            self.since[device] = []
        self.heap[:] = [(time, device) for device, time in enumerate(self.known)]
        heapify(self.heap)


def _rounding(entry: Program) -> float:
    """How far a sum of spans may be off for each entry in it, as a part of it."""
    return 4 * ROUNDING * (len(entry.steps) + 1)


class _InBlocks:
    """The same of many devices in arrays: who asks first takes one entry, who asks next the next one, as many as do so
    before any of them asks again."""

    def __init__(self, entry: Program, seconds: Floats, kinds: Ints, times: Floats) -> None:
        self.entry, self.seconds, self.kinds = entry, seconds, kinds
        self.known, self.times = times.copy(), times.copy()  # as a run has it before the entries in `since`, and now
        self.since: list[tuple[Ints, Ints]] = []  # devices, and what they took

    def takers(self, spans: Floats) -> Sequence[int]:
        found = np.empty(len(spans), dtype=np.int64)
        order, at, exact = self.times.argsort(kind="stable"), 0, inf
        while at < len(spans):
            devices = order[: len(spans) - at]
            many, after = self._undoubted(devices, order, spans[at : at + len(devices)], exact)
            if not many:
                self._settle()
                order, exact = self.times.argsort(kind="stable"), inf
                continue
            taken, after = devices[:many], after[:many]
            found[at : at + many] = taken
            self.since.append((taken, np.arange(at, at + many)))
            self.times[taken] = after
            exact, at = min(exact, float(after.min())), at + many
            merged = np.concatenate((order[many:], taken[after.argsort(kind="stable")]))
            order = merged[self.times[merged].argsort(kind="stable")]
        return found.tolist()

    def _undoubted(self, devices: Ints, order: Ints, spans: Floats, exact: float) -> tuple[int, Floats]:
        """How many of the devices ask before any of them does again, and by more than a rounding; and when they ask
        then. All moments before `exact` are as a run has them."""
        asked = self.times[devices]
        after = asked + spans[np.arange(len(devices)), self.kinds[devices]]
        again = np.concatenate(([inf], np.minimum.accumulate(after)[:-1]))
        following = np.append(self.times[order[1 : len(devices) + 1]], inf)[: len(devices)]
        close = asked + asked * (_rounding(self.entry) * (len(self.since) + 2))  # nobody took more than one in a block
        doubt = (close >= np.minimum(exact, again)) & (np.minimum(following, again) <= close)
        return int(doubt.argmax()) if doubt.any() else len(devices), after

    def _settle(self) -> None:
        """Run step by step what devices have taken."""
        devices, entries = (np.concatenate(of) for of in zip(*self.since, strict=True))
        order = devices.argsort(kind="stable")
        counts = np.bincount(devices)
        place = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
        for turn in range(int(counts.max())):
            here = order[place == turn]
            running = devices[here]
            seconds = self.seconds[:, entries[here], self.kinds[running]]
            self.known[running] = settled(self.entry, seconds[:, :, None], self.known[running, None])[:, 0]
        self.times, self.since = self.known.copy(), []
