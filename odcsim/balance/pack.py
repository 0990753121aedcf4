"""What devices hold, into microbatches under the token limit; samples are numbered from the heaviest down.

All devices are packed at once. Arrays are [device, place] or [device, microbatch], samples of a device in order.
"""

from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.partition import Floats, Ints, Shares, differencing
from odcsim.schedule import Flat

Truths = NDArray[np.bool_]
Microbatch = list[int]
FEW, WIDE = 32, 48  # devices from which on differencing is quicker in arrays, and samples of one up to which it is
MANY, LEAST = 64, 1 / 64  # parts from which on blocks are quicker than a heap, and of them in a block at least
GONE = -1.0  # the spread of a state that is part of another, or that never was


def fewest(samples: list[int], tokens: list[int], max_tokens: int) -> int:
    """No packing needs fewer microbatches than this; often one needs more."""
    return max(1, -(-sum([tokens[i] for i in samples]) // max_tokens)) if samples else 0


def split(weights: list[float], count: int) -> list[Microbatch]:
    """Exactly `count` microbatches of balanced cost, heaviest first; samples by their places."""
    parts = map(sorted, differencing(weights, count))
    return sorted(parts, key=lambda part: (-sum([weights[i] for i in part]), part))


def pack(
    samples: list[int], weights: list[float], tokens: list[int], max_tokens: int, count: int
) -> list[Microbatch] | None:
    """The same by the numbers of samples; None where that puts one over the limit.

    It asks whether the balanced split fits, not whether some less balanced one would.
    """
    parts = [[samples[i] for i in part] for part in split([weights[i] for i in samples], count)]
    if any(sum([tokens[i] for i in part]) > max_tokens for part in parts):
        return None
    return sorted(parts, key=lambda part: (-sum([weights[i] for i in part]), part))


def pack_balanced(shares: Shares, weights: Floats, tokens: Ints, max_tokens: int, *, alike: bool = False) -> Flat:
    """The fewest microbatches of each device whose balanced split fits, heaviest first; without samples it has none.

    `alike`: as many on every device, and the last ones may be empty.
    """
    shares, there, cost, size = _rows(shares, weights, tokens)
    counts = -(-size.sum(axis=1) // max_tokens)
    where, left = np.zeros_like(shares), np.flatnonzero(counts > 1)  # what is no more than the limit fits into one
    if alike and len(left):
        counts[:] = counts.max()
        left = np.arange(len(shares))
        if len(shares) >= FEW:  # whoever has most tokens is asked first
            left = size.sum(axis=1).argmax(keepdims=True)
            counts[:] -= 1
            counts[left] += 1
    while len(left):
        fits = np.zeros(len(left), dtype=bool)
        for count in set(counts[left].tolist()):
            same = counts[left] == count
            rows = left[same]
            where[rows], fits[same] = _balance(cost[rows], size[rows], there[rows], max_tokens, count)
        left = left[~fits]
        counts[left] += 1
        if alike and not len(left):  # whoever needs more is asked before the others
            left = np.flatnonzero(counts < counts.max())
            counts[left] = counts.max()
    return _flat(shares, there, where, np.maximum(counts, 1) if alike else counts)


def _rows(shares: Shares, weights: Floats, tokens: Ints) -> tuple[Shares, Truths, Floats, Ints]:
    """Without places that all devices leave empty; where there is a sample, what it costs, and its tokens."""
    none = len(weights)
    shares = np.sort(shares, axis=1)[:, : max(1, int((shares < none).sum(axis=1).max()))]
    return shares, shares < none, np.append(weights, 0.0)[shares], np.append(tokens, 0)[shares]


def _flat(shares: Shares, there: Truths, where: Ints, counts: Ints) -> Flat:
    """Samples of every device, by the numbers of their microbatches on it."""
    cell = ((counts.cumsum() - counts)[:, None] + where)[there]
    return Flat(counts, np.bincount(cell, minlength=int(counts.sum())), shares[there][cell.argsort(kind="stable")])


def _balance(cost: Floats, size: Ints, there: Truths, max_tokens: int, count: int) -> tuple[Ints, Truths]:
    """The microbatch of each sample, the heaviest first, in a split of each device's samples by differencing; and on
    which devices it fits."""
    where, fits, unsure = np.zeros_like(size), np.ones(len(size), dtype=bool), np.arange(len(size))
    # A sample that weighs nothing would be taken for none.
    if len(size) >= FEW and size.shape[1] <= WIDE and cost[there].all():
        where, sure = _in_rows(cost, count)
        cell = np.arange(len(size))[:, None] * count + np.minimum(where, count - 1)
        used = np.bincount(cell.ravel(), size.ravel(), len(size) * count).reshape(-1, count)
        fits[:], unsure = (used <= max_tokens).all(axis=1), np.flatnonzero(~sure)
    places, fit = list[list[int]](), list[bool]()
    costs, sizes, many = cost[unsure].tolist(), size[unsure].tolist(), there[unsure].sum(axis=1).tolist()
    for own, tokens, samples in zip(costs, sizes, many, strict=True):
        parts = split(own[:samples], count)
        fit.append(all(sum([tokens[place] for place in part]) <= max_tokens for part in parts))
        places.append([0] * len(own))
        for number, part in enumerate(parts):
            for place in part:
                places[-1][place] = number
    if places:
        where[unsure], fits[unsure] = places, fit
    return where, fits


def _in_rows(cost: Floats, parts: int) -> tuple[Ints, Truths]:
    """What `differencing` makes of each row, a cost of 0 standing for no sample; and in which rows it is sure: in those
    without equal sums, which it tells apart by the samples in them. The plain form of Karmarkar-Karp, a state for every
    sample, takes one step of all rows at once. Rows with the most samples come first: they are the last to end.
    """
    (count, width), samples = cost.shape, (cost > 0).sum(axis=1)
    where, sure = np.broadcast_to(np.arange(width), cost.shape).copy(), np.ones(count, dtype=bool)
    shared = np.flatnonzero(samples > parts)
    shared = shared[(-samples[shared]).argsort(kind="stable")]
    cost, samples, apart = cost[shared], samples[shared], sure[shared]
    sums: NDArray[np.float64] = np.zeros((*cost.shape, parts))
    sums[:, :, -1] = cost
    spread, place = np.where(cost > 0, cost, GONE), np.full(cost.shape, parts - 1)
    state = np.broadcast_to(np.arange(width, dtype=np.int16), cost.shape).copy()
    for step in range(1, width):
        row = np.arange(int((samples > step).sum()))
        here = slice(0, len(row))
        (one, first), (other, second) = _widest(spread[here], row), _widest(spread[here], row)
        joined: Floats = sums[row, one] + sums[row, other, ::-1]
        order = joined.argsort(axis=1)
        added = np.take_along_axis(joined, order, axis=1)
        apart[here] &= (first > second) & (second > spread[here].max(axis=1)) & _distinct(added)
        sums[row, one], spread[row, one] = added, added[:, -1] - added[:, 0]
        its = state[here] == other[:, None].astype(np.int16)
        mine = its | (state[here] == one[:, None].astype(np.int16))
        np.copyto(state[here], one[:, None].astype(np.int16), where=its)
        np.subtract(parts - 1, place[here], out=place[here], where=its)
        np.copyto(place[here], _places(order)[row[:, None], place[here]], where=mine)
    rank, falling, _ = _rank(cost, place, cost > 0, parts)
    where[shared], sure[shared] = rank, apart & _distinct(falling)
    return where, sure


def _widest(spread: Floats, row: Ints) -> tuple[Ints, Floats]:
    """The state of each row that spreads most, which is taken out, and its spread."""
    state = spread.argmax(axis=1)
    widest = spread[row, state]
    spread[row, state] = GONE
    return state, widest


def _distinct(ordered: Floats) -> Truths:
    """Whether no two sums are equal, but for those of parts that nobody is in yet."""
    distinct: Truths = ((ordered[:, 1:] != ordered[:, :-1]) | (ordered[:, 1:] == 0)).all(axis=1)
    return distinct


def _places(order: Ints) -> Ints:
    """The place in its row that each value comes to."""
    places = np.empty_like(order)
    places[np.arange(len(order))[:, None], order] = np.arange(order.shape[1])
    return places


def _rank(cost: Floats, where: Ints, there: Truths, parts: int) -> tuple[Ints, Floats, Ints]:
    """Microbatches numbered from the heaviest down, their loads in that order, and how many have a sample."""
    cell = (np.arange(len(cost))[:, None] * parts + np.minimum(where, parts - 1)).ravel()
    load = np.bincount(cell, cost.ravel(), len(cost) * parts).astype(np.float64, copy=False).reshape(-1, parts)
    used = np.bincount(cell[there.ravel()], minlength=load.size).reshape(-1, parts) > 0
    order = np.where(used, -load, np.inf).argsort(axis=1, kind="stable")
    return np.take_along_axis(_places(order), where, axis=1), np.take_along_axis(load, order, axis=1), used.sum(axis=1)


def pack_fewest(shares: Shares, weights: Floats, tokens: Ints, max_tokens: int) -> Flat:
    """The fewest microbatches of each device that the limit lets us find, heaviest first.

    The right one wherever a microbatch costs something by itself. Counts start at tokens / limit and grow until one of
    two packings fits: each sample into the lightest microbatch with room (alike in cost), or into the fullest (best
    fit, which wastes least). `pack_balanced` asks only for the balanced split, and so needs more of them.
    """
    shares, there, cost, size = _rows(shares, weights, tokens)
    count = -(-size.sum(axis=1) // max_tokens)
    where, fits = _place(cost, size, count, max_tokens)
    left = np.flatnonzero(~fits)
    if len(left):
        # Best fit leaves no two microbatches that would fit into one, so it needs less than twice the least.
        where[left], _ = _place(cost[left], size[left], 2 * count[left] - 1, max_tokens, fullest=True)
        most = where.max(axis=1) + 1
        while len(left := left[count[left] < most[left]]):
            count[left] += 1
            placed, fits = _place(cost[left], size[left], count[left], max_tokens)
            where[left[fits]] = placed[fits]
            left = left[~fits]
    rank, _, used = _rank(cost, where, there, int(where.max()) + 1)
    return _flat(shares, there, rank, used)


def _place(cost: Floats, size: Ints, count: Ints, max_tokens: int, *, fullest: bool = False) -> tuple[Ints, Truths]:
    """Samples one after the other into the fullest or the lightest microbatch with room; and whether all found one."""
    rows = np.arange(len(size))
    used = np.where(np.arange(count.max(initial=1)) < count[:, None], 0, max_tokens + 1)
    load = np.zeros(used.shape)
    where = np.empty_like(size)
    fits = np.ones(len(size), dtype=bool)
    for place in range(size.shape[1]):
        tokens = size[:, place]
        room = used + tokens[:, None] <= max_tokens
        chosen = np.where(room, used, -1).argmax(axis=1) if fullest else np.where(room, load, np.inf).argmin(axis=1)
        fits &= room[rows, chosen] | (tokens == 0)
        used[rows, chosen] += tokens
        load[rows, chosen] += cost[:, place]
        where[:, place] = chosen
    return where, fits


def lightest_with_room(weights: Floats, tokens: Ints, max_tokens: int, parts: int) -> tuple[Ints, Floats] | None:
    """Each sample, heaviest first, into the lightest part that has room for it: the part of each, and what parts weigh.
    None where a sample finds no room.

    Differencing balances a little closer but looks at no limit: it needs more parts, which costs more than it gains.
    Of parts of one load that with fewer tokens has a sample, then that with the lower number. It runs in blocks, as
    `longest_first`, for as long as the lightest parts have room and blocks are long; then one by one.
    """
    owner, loads, used = np.empty(len(weights), dtype=np.int64), np.zeros(parts), np.zeros(parts, dtype=np.int64)
    at, count = 0, parts if parts >= MANY else 0
    while at < len(weights) and count >= LEAST * parts:
        order = np.lexsort((used, loads))
        block, size = weights[at : at + parts], tokens[at : at + parts]
        before = loads[order[: len(block)]]
        second = before[1:] >= np.minimum.accumulate(before + block)[:-1]
        full = used[order[: len(block)]] + size > max_tokens
        count = int(second.argmax()) + 1 if second.any() else len(block)
        count = min(count, int(full.argmax())) if full.any() else count
        owner[at : at + count] = order[:count]
        loads[order[:count]] += block[:count]
        used[order[:count]] += size[:count]
        at += count
    if at == len(weights):
        return owner, loads
    # Parts without room wait, those with most of it first, until a sample comes that is short enough.
    heap = list(zip(loads.tolist(), used.tolist(), range(parts), strict=True))
    heapify(heap)
    full_parts: list[tuple[int, tuple[float, int, int]]] = []
    for i, (weight, length) in enumerate(zip(weights[at:].tolist(), tokens[at:].tolist(), strict=True), at):
        while full_parts and full_parts[0][0] + length <= max_tokens:
            heappush(heap, heappop(full_parts)[1])
        while heap and heap[0][1] + length > max_tokens:
            heappush(full_parts, (heap[0][1], heappop(heap)))
        if not heap:
            return None
        load, taken, part = heap[0]
        heapreplace(heap, (load + weight, taken + length, part))
        owner[i], loads[part] = part, load + weight
    return owner, loads
