"""Each sample, heaviest first, into the lightest part that has room for it."""

from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.longest_first import lowest_so_far

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Part = tuple[float, int, int]  # its load, its tokens, its number
MANY = 64  # parts from which on arrays are quicker
LEAST = 1 / 64  # of the parts in a block, or a heap is quicker


def lightest_with_room(weights: Floats, tokens: Whole, max_tokens: int, parts: int) -> tuple[Whole, Floats] | None:
    """The part of each sample, and what parts weigh; None where a sample finds no room.

    Differencing balances a little closer but looks at no limit: it needs more parts, which costs more than it gains.
    Of parts of one load that with fewer tokens has a sample, then that with the lower number.
    """
    owner, loads, used = np.empty(len(weights), dtype=np.int64), np.zeros(parts), np.zeros(parts, dtype=np.int64)
    at = _in_blocks(weights, tokens, max_tokens, owner, loads, used) if parts >= MANY else 0
    if at < len(weights):
        rest = _one_by_one(weights[at:].tolist(), tokens[at:].tolist(), max_tokens, loads, used)
        if rest is None:
            return None
        owner[at:] = rest
    return owner, loads


def _in_blocks(weights: Floats, tokens: Whole, max_tokens: int, owner: Whole, loads: Floats, used: Whole) -> int:
    """As `longest_first`, for as long as the lightest parts have room; and how many samples that were."""
    at, parts = 0, len(loads)
    while at < len(weights):
        order = np.lexsort((used, loads))
        block, size = weights[at : at + parts], tokens[at : at + parts]
        before = loads[order[: len(block)]]
        second = before[1:] >= lowest_so_far(before + block)[:-1]
        full = used[order[: len(block)]] + size > max_tokens
        count = int(second.argmax()) + 1 if second.any() else len(block)
        count = min(count, int(full.argmax())) if full.any() else count
        owner[at : at + count] = order[:count]
        loads[order[:count]] += block[:count]
        used[order[:count]] += size[:count]
        at += count
        if count < LEAST * parts:
            break
    return at


def _one_by_one(
    weights: list[float], tokens: list[int], max_tokens: int, loads: Floats, used: Whole
) -> list[int] | None:
    """Parts without room wait, those with most of it first, until a sample comes that is short enough."""
    heap: list[Part] = list(zip(loads.tolist(), used.tolist(), range(len(loads)), strict=True))
    heapify(heap)
    full: list[tuple[int, Part]] = []
    owner = []
    for weight, size in zip(weights, tokens, strict=True):
        while full and full[0][0] + size <= max_tokens:
            heappush(heap, heappop(full)[1])
        while heap and heap[0][1] + size > max_tokens:
            heappush(full, (heap[0][1], heappop(heap)))
        if not heap:
            return None
        load, tokens_held, part = heap[0]
        owner.append(part)
        heapreplace(heap, (load + weight, tokens_held + size, part))
        loads[part] = load + weight
    return owner
