"""Samples, heaviest first, to devices or microbatches whose sums come out alike.

What devices hold is an array [device, slot]: each slot names a sample, and the number past the last sample stands for
an empty slot.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from operator import neg
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Shares = NDArray[np.int64]
State = list[tuple[float, list[int]]]  # of differencing: sums of parts and the samples in them, the lightest first
FEW = 64  # samples of a run that are looked at first
KINDS, ALIKE = 48, 12  # speeds that are told apart one by one at most, and so many ranges of them where they are more


def shares_of(owner: Ints, devices: int) -> Shares:
    """Those of devices, heaviest first, given the device of each sample; the last slot is empty everywhere."""
    samples = len(owner)
    order, counts = order_of(owner, devices), np.bincount(owner, minlength=devices)
    shares = np.full((devices, int(counts.max()) + 1), samples)
    shares[owner[order], np.arange(samples) - np.repeat(counts.cumsum() - counts, counts)] = order
    return shares


def order_of(values: Ints, end: int) -> Ints:
    """Places by their values, all from 0 and below the end. (Of short numbers numpy sorts digits.)"""
    return values.astype(np.uint16 if end <= 1 << 16 else np.int64).argsort(kind="stable")


def as_array(groups: list[list[int]], samples: int) -> Shares:
    """Lists of what devices hold as an array."""
    counts = np.fromiter(map(len, groups), np.int64, len(groups))
    shares = np.full((len(groups), int(counts.max())), samples)
    shares[np.arange(shares.shape[1]) < counts[:, None]] = np.fromiter(chain.from_iterable(groups), np.int64)
    return shares


def as_lists(shares: Shares, samples: int) -> list[list[int]]:
    """And as lists again."""
    return [[i for i in row if i < samples] for row in shares.tolist()]


def lower_bound(weights: Floats, devices: int) -> float:
    """The heaviest device of any assignment weighs at least this much.

    The mean load; the heaviest sample; and for every i the samples i * devices + 1 and the i before it: of the first
    i * devices + 1 samples some device holds i + 1, and those are the lightest of them.
    """
    heaviest = np.sort(weights)[::-1]
    total = np.concatenate(([0.0], np.cumsum(heaviest)))
    more = np.arange(1, (len(weights) - 1) // devices + 1)
    together = total[more * devices + 1] - total[more * devices - more]
    return float(max(total[-1] / devices, heaviest[0], together.max(initial=0.0)))


def longest_first(weights: Floats, devices: int) -> Shares:
    """Longest processing time first (LPT): each sample to the device with the least so far.

    The right start for many devices, and where the cost model may be wrong: devices hold a few long samples and many
    short ones rather than a tight fit of particular ones, and the short ones leave room to trade.

    It runs in blocks: the lightest devices take one sample each, as many as do so before any of them would come to a
    second. That is the textbook's result, tens of times quicker than a heap once devices are thousands.
    """
    owner = np.arange(len(weights))
    loads = np.zeros(devices)
    loads[: len(weights)] = weights[:devices]
    at = devices
    while at < len(weights):
        order = loads.argsort(kind="stable")
        before, block = loads[order], weights[at : at + devices]
        after = np.minimum.accumulate(before[: len(block)] + block)
        second = before[1 : len(block)] > after[:-1]
        count = int(second.argmax()) + 1 if second.any() else len(block)
        owner[at : at + count] = order[:count]
        loads[order[:count]] += block[:count]
        at += count
    return shares_of(owner, devices)


def differencing(weights: list[float], parts: int) -> list[list[int]]:
    """Exact Karmarkar-Karp (largest differencing): the samples of each part, any number of them.

    The right one for few parts where only the sums matter. No part stays empty unless samples are fewer than parts.

    The textbook keeps a state of `parts` sums for every sample. Here samples that were not touched yet stay in the
    sorted stream they came in, and only states that hold a sample in every part are stored (a handful at a time). That
    loses nothing: a state with an empty part spreads as much as its heaviest sample, which is no less than anything
    left, so it is always the next one taken until it is full. Among equal spreads the state made last goes first, so a
    result depends on the weights alone.
    """
    count = len(weights)
    if parts == 1 or parts >= count:
        return [list(range(count))] if parts == 1 else [[i] if i < count else [] for i in range(parts)]
    heap: list[tuple[float, int, State]] = []
    taken = turn = 0
    while taken < count or len(heap) > 1:
        turn -= 1
        spread = -heap[0][0] if heap else -1.0
        if taken < count and weights[taken] > spread:
            stop = min(taken + parts, bisect_left(weights, -spread, taken, key=neg))
            if stop - taken == parts:
                state = [(weights[i], [i]) for i in range(stop - 1, taken - 1, -1)]
            else:  # over the lightest parts of the next state
                under = heappop(heap)[2]
                over = [(under[i - taken][0] + weights[i], [*under[i - taken][1], i]) for i in range(taken, stop)]
                state = sorted(over + under[stop - taken :])
            taken = stop
        else:
            state = heappop(heap)[2]
            if taken < count and (not heap or weights[taken] > -heap[0][0]):
                lightest, samples = state.pop(0)
                insort(state, (lightest + weights[taken], [*samples, taken]))
                taken += 1
            else:  # the heaviest part of one joins the lightest of the other, and so on inwards
                other = heappop(heap)[2]
                state = sorted([(a + b, p + q) for (a, p), (b, q) in zip(state, reversed(other), strict=True)])
        heappush(heap, (state[0][0] - state[-1][0], turn, state))
    return [samples for _, samples in heap[0][2]]


def differencing_equal(weights: Floats, parts: int) -> Shares:
    """Karmarkar-Karp into parts of equal counts (within one), each in the order in which samples came to it.

    The right one where every device must hold as many samples as the others. Each `parts` samples in a row are one
    state from the start, so there are only count / parts states to difference.
    """
    count = len(weights)
    rows = np.minimum(np.arange(-(-count // parts) * parts), count).reshape(-1, parts)[:, ::-1]
    sums = np.append(weights, 0.0)[rows]
    heap = [Wide(float(own[0] - own[-1]), -row, own, rows[row], rows[row]) for row, own in enumerate(sums)]
    heapify(heap)
    for turn in range(len(heap), 2 * len(heap) - 1):
        heappush(heap, _join(heappop(heap), heappop(heap), -turn, count))
    return np.stack(list(_columns(heap[0].origin, parts)), axis=1)


def differencing_many(weights: Floats, parts: int) -> Shares:
    """What `differencing` finds, quicker for hundreds of parts and no more parts than samples.

    A run of samples that one state takes one after the other is taken at once, for as long as none of its parts would
    take a second one.
    """
    count, taken, turn, heap, rising = len(weights), 0, 0, list[Wide](), -weights
    while taken < count or len(heap) > 1:
        turn -= 1
        spread = -heap[0].spread if heap else -1.0
        stop = taken
        if taken < count and weights[taken] > spread:
            stop = min(taken + parts, int(np.searchsorted(rising, -spread)))
            state = heappop(heap) if stop - taken < parts else _row(weights, taken, stop, parts, turn)
        else:
            state = heappop(heap)
            beside = -heap[0].spread if heap else -1.0
            if taken < count and weights[taken] > beside:
                stop += _run(state.sums, weights[taken : taken + parts], beside)
        if stop - taken < parts:
            other = _row(weights, taken, stop, parts, turn) if stop > taken else heappop(heap)
            state = _join(state, other, turn, count)
        taken = stop
        heappush(heap, state)
    owner = np.empty(count + 1, dtype=np.int64)
    for column in _columns(heap[0].origin, parts):
        owner[column] = np.arange(parts)
    return shares_of(owner[:count], parts)


class Wide(NamedTuple):
    """A state in arrays. What parts hold is not kept while states join: each knows its origin, a row of samples or the
    two states and the order of their sums, and the last one is followed back."""

    spread: float  # the widest is taken first, and of equal ones the one that was made last
    turn: int
    sums: Floats  # of parts, the lightest first
    first: Ints  # sample of each, by which equal sums are told apart
    origin: Any


def _row(weights: Floats, start: int, stop: int, parts: int, turn: int) -> Wide:
    """A sample in each part, or in the last ones."""
    sums, samples = np.zeros(parts), np.full(parts, len(weights))
    sums[parts - stop + start :] = weights[start:stop][::-1]
    samples[parts - stop + start :] = np.arange(start, stop)[::-1]
    return Wide(float(sums[0] - sums[-1]), turn, sums, samples, samples)


def _join(one: Wide, other: Wide, turn: int, none: int) -> Wide:
    """The heaviest part of one joins the lightest of the other, and so on inwards."""
    sums, first = one.sums + other.sums[::-1], np.where(one.first < none, one.first, other.first[::-1])
    order = sums.argsort(kind="stable")
    rising = sums[order]
    if (rising[1:] == rising[:-1]).any():
        order = np.lexsort((first, sums))
        rising = sums[order]
    return Wide(float(rising[0] - rising[-1]), turn, rising, first[order], (order, one.origin, other.origin))


def _run(sums: Floats, weights: Floats, beside: float) -> int:
    """How many samples a state takes before another is wider, it is no wider than a sample, or a part is at its second.
    Runs are short or long, so that few are looked at first."""
    if len(weights) > FEW and (run := _run(sums, weights[:FEW], beside)) < FEW:
        return run
    before = sums[: len(weights)]
    after = before + weights
    low, high = np.minimum.accumulate(after)[:-1], np.maximum(sums[-1], -np.minimum.accumulate(-after))[:-1]
    ends = (before[1:] >= low) | (high - before[1:] < weights[1:]) | (weights[1:] <= beside)
    return int(ends.argmax()) + 1 if ends.any() else len(weights)


def _columns(origin: Any, parts: int) -> Iterator[Ints]:
    """A sample of each part, row after row."""
    left = [(origin, np.arange(parts))]
    while left:
        origin, part = left.pop()
        if isinstance(origin, tuple):
            order, one, other = origin
            left += [(other, parts - 1 - order[part]), (one, order[part])]
        else:
            yield origin[part]


def earliest(weights: Floats, speeds: Floats) -> Shares:
    """Each sample to the device that would be done with it first, where devices are not alike.

    Of devices as fast as each other (or nearly so, where speeds are many) one that is done first is asked for all.
    """
    kinds, kind = np.unique(speeds, return_inverse=True)
    if len(kinds) > KINDS:
        steps = np.log(speeds / kinds[0]) / np.log(kinds[-1] / kinds[0])
        kind = np.unique(np.minimum((steps * ALIKE).astype(np.int64), ALIKE - 1), return_inverse=True)[1]
    queues: list[list[tuple[float, float, int]]] = [[] for _ in range(int(kind.max()) + 1)]
    for device, (k, slow) in enumerate(zip(kind.tolist(), (1 / speeds).tolist(), strict=True)):
        queues[k].append((0.0, slow, device))  # the time at which it is done, seconds of a weight of 1
    for queue in queues:
        heapify(queue)
    tops, owner = [queue[0] for queue in queues], []
    for weight in weights.tolist():
        ends = [time + weight * slow for time, slow, _ in tops]
        first = min(ends)
        k = ends.index(first)
        _, slow, device = tops[k]
        heapreplace(queues[k], (first, slow, device))
        tops[k] = queues[k][0]
        owner.append(device)
    return shares_of(np.array(owner), len(speeds))
