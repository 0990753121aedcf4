"""Samples, heaviest first, to devices or microbatches whose sums come out alike.

What devices hold is an array [device, slot]: each slot names a sample, and the number past the last sample stands for
an empty slot.
"""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import neg
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Held = NDArray[np.int64]
State = list[tuple[float, list[int]]]  # of differencing: sums of parts and the samples in them, the lightest first


def hold(owner: Whole, devices: int) -> Held:
    """What each device holds, heaviest first, given the device of each sample; the last slot is empty everywhere."""
    samples = len(owner)
    order, counts = ordered(owner, devices), np.bincount(owner, minlength=devices)
    held = np.full((devices, int(counts.max()) + 1), samples)
    held[owner[order], np.arange(samples) - np.repeat(counts.cumsum() - counts, counts)] = order
    return held


def ordered(values: Whole, end: int) -> Whole:
    """Places by their values, all from 0 and below the end. (Of short numbers numpy sorts digits.)"""
    return values.astype(np.uint16 if end <= 1 << 16 else np.int64).argsort(kind="stable")


def laid(groups: list[list[int]], samples: int) -> Held:
    """Lists of what devices hold as an array."""
    counts = np.fromiter(map(len, groups), np.int64, len(groups))
    held = np.full((len(groups), int(counts.max())), samples)
    held[np.arange(held.shape[1]) < counts[:, None]] = np.fromiter(chain.from_iterable(groups), np.int64)
    return held


def listed(held: Held, samples: int) -> list[list[int]]:
    """And as lists again."""
    return [[i for i in row if i < samples] for row in held.tolist()]


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


def longest_first(weights: Floats, devices: int) -> Held:
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
        after = lowest_so_far(before[: len(block)] + block)
        second = before[1 : len(block)] > after[:-1]
        count = int(second.argmax()) + 1 if second.any() else len(block)
        owner[at : at + count] = order[:count]
        loads[order[:count]] += block[:count]
        at += count
    return hold(owner, devices)


def lowest_so_far(values: NDArray[Any]) -> NDArray[Any]:
    """Of each place the lowest value up to it."""
    lowest: NDArray[Any] = np.minimum.accumulate(values)
    return lowest


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
    taken = made = 0
    while taken < count or len(heap) > 1:
        made -= 1
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
        heappush(heap, (state[0][0] - state[-1][0], made, state))
    return [samples for _, samples in heap[0][2]]


def differencing_equal(weights: Floats, parts: int) -> Held:
    """Karmarkar-Karp into parts of equal counts (within one), each in the order in which samples came to it.

    The right one where every device must hold as many samples as the others. Each `parts` samples in a row are one
    state from the start, so there are only count / parts states to difference. What a part holds is not kept while
    states join: each knows of which two it was made and in which order, and the last one is followed back.
    """
    count = len(weights)
    rows = np.full(-(-count // parts) * parts, count)
    rows[:count] = np.arange(count)
    rows = rows.reshape(-1, parts)[:, ::-1]
    heap: list[tuple[float, int, Floats, Whole, Any]] = []  # spread, turn, sums and first samples of parts, origin
    for row, sums in enumerate(np.append(weights, 0.0)[rows]):
        heap.append((float(sums[0] - sums[-1]), -row, sums, rows[row], row))
    heapify(heap)
    for made in range(len(heap), 2 * len(heap) - 1):
        (_, _, sums, first, one), (_, _, more, others, other) = heappop(heap), heappop(heap)
        sums, first = sums + more[::-1], np.where(first < count, first, others[::-1])
        order = np.lexsort((first, sums))
        sums = sums[order]
        heappush(heap, (float(sums[0] - sums[-1]), -made, sums, first[order], (order, one, other)))
    columns, left = list[Whole](), [(heap[0][4], np.arange(parts))]
    while left:
        origin, part = left.pop()
        if isinstance(origin, int):
            columns.append(rows[origin][part])
        else:
            order, one, other = origin
            left += [(other, parts - 1 - order[part]), (one, order[part])]
    return np.stack(columns, axis=1)
