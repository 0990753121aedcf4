"""Every device's samples into the fewest microbatches that the token limit lets us find, then alike in cost.

All devices are packed at once, one sample of each at a time. Arrays are [device, place] or [device, microbatch];
samples stand heaviest first, and the number past the last one stands for none.
"""

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.packed_rows import flat_rows
from odcsim.balance.packing import Microbatch
from odcsim.balance.trades import Held
from odcsim.flat import Flat

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
STEPS = 8  # trades between the microbatches of one device


def pack_all(held: Held, weights: Floats, tokens: Whole, max_tokens: int) -> Flat:
    """The microbatches of each device, heaviest first; a device without samples has none.

    The right one wherever a microbatch costs something by itself. Counts start at tokens / limit and grow until one of
    two packings fits: each sample into the lightest microbatch with room (alike in cost), or into the fullest (best
    fit, which wastes least). `pack` asks only for the balanced split, and so needs more of them.
    """
    held = np.sort(held, axis=1)[:, : int((held < len(weights)).sum(axis=1).max())]
    cost, size = np.append(weights, 0.0)[held], np.append(tokens, 0)[held]
    where, fitted = _fewest(cost, size, max_tokens)
    there = held < len(weights)
    rank, count = _by_load(cost, where, there)
    if len(fitted):
        cheap, short = weights.tolist(), tokens.tolist()
        for device in fitted.tolist():
            _mend(held[device], rank[device], int(count[device]), cheap, short, max_tokens)
    return flat_rows(held, there, rank, count)


def _fewest(cost: Floats, size: Whole, max_tokens: int) -> tuple[Whole, Whole]:
    """The microbatch of each sample, and the devices that only best fit could pack."""
    count = -(-size.sum(axis=1) // max_tokens)
    where, fits = _place(cost, size, count, max_tokens)
    todo = np.flatnonzero(~fits)
    if not len(todo):
        return where, todo
    # Best fit leaves no two microbatches that would fit into one, so it needs less than twice the least.
    where[todo], _ = _place(cost[todo], size[todo], 2 * count[todo] - 1, max_tokens, fullest=True)
    most = where.max(axis=1) + 1
    fitted = []
    while len(todo):
        last = count[todo] == most[todo]
        fitted.append(todo[last])
        todo = todo[~last]
        count[todo] += 1
        placed, fits = _place(cost[todo], size[todo], count[todo], max_tokens)
        where[todo[fits]] = placed[fits]
        todo = todo[~fits]
    return where, np.concatenate(fitted)


def _place(
    cost: Floats, size: Whole, count: Whole, max_tokens: int, *, fullest: bool = False
) -> tuple[Whole, NDArray[np.bool_]]:
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


def _by_load(cost: Floats, where: Whole, there: NDArray[np.bool_]) -> tuple[Whole, Whole]:
    """Microbatches numbered from the heaviest down, and how many of each device have a sample."""
    shape = len(cost), int(where.max()) + 1
    cell = np.arange(shape[0])[:, None] * shape[1] + where
    load = np.bincount(cell.ravel(), cost.ravel(), shape[0] * shape[1]).reshape(shape)
    used = np.bincount(cell[there], minlength=load.size).reshape(shape) > 0
    order = np.where(used, -load, np.inf).argsort(axis=1, kind="stable")
    return np.take_along_axis(order.argsort(axis=1), where, axis=1), used.sum(axis=1)


def _mend(held: Whole, rank: Whole, count: int, weights: list[float], tokens: list[int], max_tokens: int) -> None:
    """Even out the microbatches of one device."""
    place = {sample: at for at, sample in enumerate(held.tolist()) if sample < len(weights)}
    packed: list[Microbatch] = [[] for _ in range(count)]
    for sample, at in place.items():
        packed[rank[at]].append(sample)
    for part, samples in enumerate(_even_out(packed, weights, tokens, max_tokens)):
        rank[[place[sample] for sample in samples]] = part


def _even_out(packed: list[Microbatch], weights: list[float], tokens: list[int], max_tokens: int) -> list[Microbatch]:
    """Trades that lower the heaviest microbatch and keep to the limit; heaviest first again."""
    for _ in range(STEPS):
        packed = _by_cost(packed, weights)
        heavy = packed[0]
        for other in range(len(packed) - 1, 0, -1):
            if trade := _best_trade(heavy, packed[other], weights, tokens, max_tokens):
                give, take = trade
                packed[0] = sorted([i for i in heavy if i != give] + take)
                packed[other] = sorted([i for i in packed[other] if i not in take] + [give])
                break
        else:
            break
    return _by_cost(packed, weights)


def _best_trade(
    heavy: Microbatch, light: Microbatch, weights: list[float], tokens: list[int], max_tokens: int
) -> tuple[int, list[int]] | None:
    """The sample to give and the one to take, if any, so that the heavier of the two is lightest."""
    above, below = (sum([weights[i] for i in part]) for part in (heavy, light))
    room_above, room_below = (max_tokens - sum([tokens[i] for i in part]) for part in (heavy, light))
    takes = [([i], weights[i], tokens[i]) for i in light] + [([], 0.0, 0)]
    best, trade = above, None
    for give in heavy:
        weight, length = weights[give], tokens[give]
        for take, other, instead in takes:
            worse = max(above - weight + other, below + weight - other)
            if worse < best and -room_above <= length - instead <= room_below:
                best, trade = worse, (give, take)
    return trade


def _by_cost(packed: list[Microbatch], weights: list[float]) -> list[Microbatch]:
    return sorted(packed, key=lambda part: (-sum([weights[i] for i in part]), part))
