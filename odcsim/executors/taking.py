"""Who takes what from the queues that devices share, found without running everything else beside it.

How long an entry keeps a device does not depend on when it begins, since nobody meets inside a microbatch. So one scan
over all entries of all minibatches tells it, and then the moments at which devices ask: who asks first takes the next
entry, of several the lowest number.

Such a moment is a sum of spans here, and the sum of every step in a run. The two differ in their last bits, which
matter where devices ask at one moment: samples that were cut at a limit are equally long, and so are microbatches whose
transfers take longer than their compute; devices that have run the same ones in another order ask within a rounding of
each other. Where moments are that close, what devices have taken so far is run step by step, so that the takers are
those of a run to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from odcsim.executors.analytic import settled
from odcsim.program import Program
from odcsim.timeline import Floats, Ints, padded

PIECE = 4096  # entries scanned at once: their rows stay in the cache
ROUNDING = 2.0**-52


@dataclass(frozen=True, slots=True)
class Entries:
    """Those of the queues of all minibatches, one after the other, as microbatches of each kind of device."""

    counts: Sequence[int]  # entries of each minibatch
    seconds: Floats  # [row of the entry's program, entry, kind]
    kinds: Ints  # of each device


def take(program: Program, durations: Floats, entry: Program, entries: Entries) -> Ints:
    """Which device takes each entry [minibatch, entry], -1 where a minibatch has fewer than others.

    `durations` are of what the devices do before they ask. `entry` is a program of one microbatch. A device asks when
    its pushes are done and so is all else, so nothing but that moment carries over into its next microbatch.
    """
    free = settled(program, durations)
    pieces = range(0, entries.seconds.shape[1], PIECE)
    spans = [settled(entry, entries.seconds[:, first : first + PIECE]) for first in pieces]
    every = np.concatenate(spans) if spans else np.zeros((0, entries.seconds.shape[2]))
    takers, first = [], 0
    for count, times in zip(entries.counts, free, strict=True):
        here = slice(first, first + count)
        takers.append(_takers(entry, entries.seconds[:, here], entries.kinds, times, every[here]))
        first += count
    return padded(takers)


def _takers(entry: Program, seconds: Floats, kinds: Ints, known: Floats, spans: Floats) -> list[int]:
    """Of one minibatch, in blocks: who asks first takes one entry, who asks next the next one, as many as do so before
    any of them asks again, and by more than a rounding. `known`: when each device first asks, as a run has it.

    `since` has what was taken since all moments were known, a block after the other: its devices and its entries.
    """
    rounding = 4 * ROUNDING * (len(entry.steps) + 1)  # of a sum, for each entry in it
    found, times, since = np.empty(len(spans), dtype=np.int64), known.copy(), list[tuple[Ints, Ints]]()
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
            known = _settled(entry, seconds, kinds, known, since)
            times, since, exact = known.copy(), [], inf
            order = times.argsort(kind="stable")
            continue
        taken, entries, after = devices[:many], np.arange(at, at + many), after[:many]
        found[entries], times[taken] = taken, after
        since.append((taken, entries))
        exact, at = min(exact, float(after.min())), at + many
        rest = np.concatenate((order[many:], taken[after.argsort(kind="stable")]))
        order = rest[times[rest].argsort(kind="stable")]
    return found.tolist()


def _settled(entry: Program, seconds: Floats, kinds: Ints, known: Floats, since: Sequence[tuple[Ints, Ints]]) -> Floats:
    """When devices ask, after what they have taken is run step by step."""
    devices, entries = (np.concatenate(of) for of in zip(*since, strict=True))
    order, counts, known = devices.argsort(kind="stable"), np.bincount(devices), known.copy()
    turns = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
    for turn in range(int(counts.max())):
        here = order[turns == turn]
        running = devices[here]
        took = seconds[:, entries[here], kinds[running]]
        known[running] = settled(entry, took[:, :, None], known[running, None])[:, 0]
    return known
