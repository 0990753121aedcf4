"""Exact Karmarkar-Karp (largest differencing), into any number of parts.

The textbook form keeps one state of `parts` sums for every sample: samples x parts sets. Here samples that were not
touched yet stay in the sorted stream they came in, and only states that hold a sample in every part are stored (a
handful at a time). That loses nothing: a state with an empty part spreads as much as its heaviest sample, which is no
less than anything left, so it is always the next one taken until it is full.

Into many parts of many samples states are arrays (`wide`), which have the same sums.

Among equal spreads the state made last goes first, so a result depends on the weights alone.
"""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from operator import neg

import numpy as np

from odcsim.balance.wide import Whole, differencing_equal_wide, differencing_wide

WIDE, MANY = 32, 2048  # parts and samples from which on arrays are quicker than lists; sums are the same

Part = tuple[float, list[int]]  # the sum of a part and the samples in it
State = list[Part]  # lightest part first


def differencing(weights: list[float], parts: int) -> list[list[int]]:
    """Split samples, heaviest first in `weights`, into parts of nearly equal sums; any number of samples per part.

    The right one where only the sums matter. No part stays empty unless there are fewer samples than parts.
    """
    count = len(weights)
    if parts == 1 or parts >= count:
        return [list(range(count))] if parts == 1 else [[i] if i < count else [] for i in range(parts)]
    if parts >= WIDE and count >= MANY:
        return _groups(differencing_wide(np.array(weights), parts), np.zeros(count, dtype=np.int64), parts)
    heap: list[tuple[float, int, State]] = []
    taken = made = 0
    while taken < count or len(heap) > 1:
        made -= 1
        spread = -heap[0][0] if heap else -1.0
        if taken < count and weights[taken] > spread:
            stop = min(taken + parts, bisect_left(weights, -spread, taken, key=neg))
            state = _open(weights, taken, stop, parts, heap)
            taken = stop
        else:
            state = heappop(heap)[2]
            if taken < count and (not heap or weights[taken] > -heap[0][0]):
                lightest, samples = state.pop(0)
                insort(state, (lightest + weights[taken], [*samples, taken]))
                taken += 1
            else:
                state = _combine(state, heappop(heap)[2])
        heappush(heap, (state[0][0] - state[-1][0], made, state))
    return [samples for _, samples in heap[0][2]]


def differencing_equal(weights: list[float], parts: int) -> list[list[int]]:
    """Split samples, heaviest first in `weights`, into parts of equal counts (within one) and nearly equal sums.

    The right one where every device must hold as many samples as the others. Each `parts` samples in a row are one
    state from the start, so there are only count / parts states to difference.
    """
    if parts >= WIDE and len(weights) >= MANY:
        return _groups(*differencing_equal_wide(np.array(weights), parts), parts)
    heap: list[tuple[float, int, State]] = []
    for start in range(0, len(weights), parts):
        stop = min(start + parts, len(weights))
        state = _open(weights, start, stop, parts, [])
        heap.append((state[0][0] - state[-1][0], -len(heap), state))
    heapify(heap)
    made = -len(heap)
    while len(heap) > 1:
        state = _combine(heappop(heap)[2], heappop(heap)[2])
        heappush(heap, (state[0][0] - state[-1][0], made, state))
        made -= 1
    return [samples for _, samples in heap[0][2]] if heap else [[] for _ in range(parts)]


def many_parts(samples: int, parts: int) -> bool:
    """Whether states are arrays."""
    return parts >= WIDE and samples >= MANY


def _groups(part: Whole, turn: Whole, parts: int) -> list[list[int]]:
    """The samples of each part, by the turn in which they were laid there."""
    samples = np.lexsort((turn, part)).tolist()
    ends = np.bincount(part, minlength=parts).cumsum().tolist()
    return [samples[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _open(weights: list[float], start: int, stop: int, parts: int, heap: list[tuple[float, int, State]]) -> State:
    """One sample per part; with fewer samples than parts, laid over the next state (its lightest parts) if any."""
    missing = parts - (stop - start)
    if missing and heap:
        under = heappop(heap)[2]
        over = [
            (total + weights[i], [*samples, i]) for i, (total, samples) in zip(range(start, stop), under, strict=False)
        ]
        return sorted(over + under[stop - start :])
    empty: State = [(0.0, []) for _ in range(missing)]
    return empty + [(weights[i], [i]) for i in range(stop - 1, start - 1, -1)]


def _combine(one: State, other: State) -> State:
    """The heaviest part of one joins the lightest of the other, and so on inwards."""
    return sorted([(a + b, p + q) for (a, p), (b, q) in zip(one, reversed(other), strict=True)])
