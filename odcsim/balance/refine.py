"""Trades of samples between devices, which even out what a partition left uneven.

A trade gives one sample of a heavier device for one of a lighter device, or for nothing. By one cost, many devices
trade in pairs, all at once in arrays; the last steps, and all of them with few devices, go one by one in plain lists,
which is quicker there. Under several scenarios of cost, or of devices of unlike speeds, the heaviest ones are relieved.
All end once no trade lowers the heaviest device: lifting others would not end the minibatch any sooner.
"""

from bisect import insort
from typing import NamedTuple

import numpy as np

from odcsim.balance.partition import Floats, Ints, Shares, lower_bound

MANY = 24  # devices from which on arrays are quicker
CLOSE = 5e-4  # of the mean load or of the lower bound: less is far below the error of any cost model
STEPS = 64  # in lists, and half a step per device
PARTNERS = 128  # lightest devices asked to relieve the heaviest one in lists
PATIENCE = 8  # rounds of pairs without a gain for the heaviest device, each with partners further away
GAIN = CLOSE / 16  # the least that a trade must bring
SHARE = 0.6  # devices this far up between the bound and the heaviest load are relieved in one round
ROUNDS = 16  # of devices at once
FEWER = 8  # times fewer devices are relieved, each with more partners, once the heaviest one finds no trade
TRADES = 1 << 17  # compared in one round at most, which bounds its time and memory
WIDE = 4096  # samples of one device over which nobody trades: the lightest of them have evened it out

# Of the quadratic part of a sample's cost. A load is a straight line in such a factor: where it is as even as can be at
# both ends it is so between them, but for a kink where the longest sample takes over from the mean as lower bound.
FACTORS = (0.8, 1.25)


def scenarios(linear: Floats, quadratic: Floats) -> Floats:
    """What samples weigh if the cost model is wrong [scenario, sample], from the two parts of each sample's seconds."""
    weights: Floats = linear + np.array(FACTORS)[:, None] * quadratic
    return weights


def guess(weights: Floats, lengths: Ints) -> Floats:
    """The same from sums alone: the quadratic part is what fits them best as a s + b s^2.

    Weights that grow no faster than lengths have no such part, and all scenarios are alike.
    """
    x = lengths / lengths.max()
    squares, cubes, fourths = (float((x**power).sum()) for power in (2, 3, 4))
    once, twice = float((x * weights).sum()), float((x**2 * weights).sum())
    determinant = squares * fourths - cubes**2
    slope = (squares * twice - cubes * once) / determinant if determinant > 1e-9 * cubes**2 else 0.0
    quadratic = np.clip(slope * x**2, 0.0, weights)
    return scenarios(weights - quadratic, quadratic)


def in_bounds(weights: Floats, devices: int) -> Floats:
    """Weights [scenario, sample] in units of each scenario's lower bound: a load of 1 cannot be beaten."""
    scaled: Floats = weights / np.array([[lower_bound(row, devices) or 1.0] for row in weights])
    return scaled


def even_out(shares: Shares, weights: Floats) -> Shares:
    """The same samples with a lesser (never a greater) spread of loads; `weights` run from the heaviest sample down.

    Two loads come closer with each trade, so the sum of all squared falls and no state returns. Counts that are equal
    stay so: a device gives a sample for nothing only where it has more than the other.
    """
    close = CLOSE * sum(weights.tolist()) / len(shares)
    paired = _in_pairs(shares.copy(), weights, close) if len(shares) >= MANY else shares
    return _one_by_one(np.sort(paired, axis=1), weights, close)


def _in_pairs(shares: Shares, weights: Floats, close: float) -> Shares:
    """Trades of many pairs of devices at once, the heaviest with the lightest.

    Where the heaviest finds none, all have partners further away in the next round.
    """
    none, width, weights = len(weights), shares.shape[1], np.append(weights, 0.0)  # an empty slot weighs nothing
    loads = weights[shares].sum(axis=1)
    pairs = max(1, min(len(shares) // 2, (TRADES >> 1) // width**2))
    turn, change = np.arange(pairs), np.empty((pairs, width, width))
    left = change.reshape(pairs, -1)  # of the gap, after each trade
    order, idle, uneven = np.arange(len(shares)), 0, bool((shares == none).any())
    for _ in range(4 * ROUNDS):
        order = _lightest_first(loads, order)
        heavy, light = order[: -pairs - 1 : -1], order[(turn + (1 << idle) - 1) % pairs]
        gaps = loads[heavy] - loads[light]
        if loads[heavy[0]] <= weights[0]:
            break
        np.subtract(weights[shares[heavy]][:, :, None], weights[shares[light]][:, None, :], out=change)
        np.abs(np.subtract(gaps[:, None, None], np.multiply(change, 2, out=change), out=change), out=change)
        best = left.argmin(axis=1)
        gained = left[turn, best] < gaps - close / 8
        if uneven:
            more = (shares[heavy] < none).sum(axis=1) > (shares[light] < none).sum(axis=1)
            gained &= (shares[light, best % width] < none) | more
        idle = 0 if gained[0] else idle + 1
        if idle > min(PATIENCE, pairs.bit_length()):
            break
        heavy, light, (give, take) = heavy[gained], light[gained], np.divmod(best[gained], width)
        shares[heavy, give], shares[light, take] = shares[light, take], shares[heavy, give]
        changed = np.concatenate((heavy, light))
        loads[changed] = weights[shares[changed]].sum(axis=1)
    return shares


def _lightest_first(loads: Floats, before: Ints) -> Ints:
    """Devices by their loads, of like ones the lower number first. `before`: an order that is about right, from which
    that takes a tenth of the time where no loads are alike."""
    order = before[loads[before].argsort(kind="stable")]
    rising = loads[order]
    return loads.argsort(kind="stable") if (rising[1:] == rising[:-1]).any() else order


def _one_by_one(shares: Shares, weights: Floats, close: float) -> Shares:
    """The heaviest device trades with the lightest one that can relieve it; lists are made of those that trade."""
    none, listed, groups = len(weights), weights.tolist(), dict[int, list[int]]()
    loads = sums_of(shares, weights)
    if loads.max() <= max(loads.min() + close, weights[0]):
        return shares
    ranked = sorted(zip(loads.tolist(), range(len(shares)), strict=True))
    for _ in range(STEPS + len(ranked) // 2):
        load, heavy = ranked[-1]
        if load <= max(ranked[0][0] + close, listed[0]):
            break
        above = groups[heavy] = groups.get(heavy) or [i for i in shares[heavy].tolist() if i < none]
        for other, light in ranked[: min(PARTNERS, len(ranked) - 1)]:
            below = groups[light] = groups.get(light) or [i for i in shares[light].tolist() if i < none]
            gap = load - other
            left, give, take = _nearest_trade(above, below, listed, gap)
            if left < gap - close / 8:
                given = above.pop(give)
                if take < len(below):
                    insort(above, below.pop(take))
                insort(below, given)
                ranked.pop()
                ranked.remove((other, light))
                insort(ranked, (sum([listed[i] for i in above]), heavy))
                insort(ranked, (sum([listed[i] for i in below]), light))
                break
        else:
            break
    width = max(shares.shape[1], *map(len, groups.values()))
    shares = np.concatenate((shares, np.full((len(shares), width - shares.shape[1]), none)), axis=1)
    for device, group in groups.items():
        shares[device] = group + [none] * (width - len(group))
    return shares


def sums_of(shares: Shares, weights: Floats) -> Floats:
    """What each device holds, one sample after the other: as lists are added up, to the last bit."""
    return np.append(weights, 0.0)[shares].cumsum(axis=1)[:, -1]


def _nearest_trade(above: list[int], below: list[int], weights: list[float], gap: float) -> tuple[float, int, int]:
    """The gap after the best trade, the place given and the place taken (one past the end: nothing is taken).

    Both lists run from the heaviest sample down, so one walk along both meets the best pair. A device with more samples
    than the other may give one for nothing.
    """
    best, give, take = gap, 0, 0
    gives = [2 * weights[i] - gap for i in above]
    takes = [2 * weights[i] for i in below]
    if len(above) > len(below):
        takes.append(0.0)
    i, j, last, end = 0, 0, len(gives), len(takes)
    while i < last and j < end:
        left = takes[j] - gives[i]
        if abs(left) < best:
            best, give, take = abs(left), i, j
        if left < 0:  # gave too much already, and the later places of `takes` weigh less
            i += 1
        else:
            j += 1
    return best, give, take


def relieve(
    shares: Shares, scenarios: Floats, slow: Floats | None = None, *, most: int | None = None, rounds: int = ROUNDS
) -> Shares:
    """Lower the heaviest device, where heavy means in its worst scenario.

    Scenarios are weights [scenario, sample], each in units of its own lower bound: a load of 1 cannot be beaten.
    `slow`: how many times as long each device takes, where they are not alike. A load is a time then.

    In each round the heaviest devices trade at once, each with partners of its own among the light ones. Those are
    light by their worst scenario or by one of them, in turn: a device that is heavy only if long samples cost more
    than believed is helped by one that is heavy only if they cost less. The fewer devices are left to relieve, the
    more partners each has. It ends where the heaviest one finds no trade with anybody asked. `most`: relieved at once.
    """
    shares, width = shares.copy(), shares.shape[1]
    weights = np.concatenate((scenarios, np.zeros((len(scenarios), 1))), axis=1)  # an empty slot weighs nothing
    loads = _loads(weights, shares, slow)
    views = len(loads) + 1 if len(loads) > 1 else 1
    few, turn, missed = min(len(shares) // 2, most or len(shares)) if width <= WIDE else 0, 0, 0
    for _ in range(rounds if few else 0):
        worst = loads.max(axis=0)
        top = worst.max()
        if top <= 1 + CLOSE:
            break
        many = min(few, int((worst > 1 + SHARE * (top - 1)).sum()), max(1, TRADES // width**2))
        order = worst.argsort(kind="stable")
        heavy, rest = order[: -many - 1 : -1], order[:-many]
        if turn:
            rest = rest[loads[turn - 1][rest].argsort(kind="stable")]
        partners = min(len(rest) // many, max(1, TRADES // (many * width**2)))
        light = rest[: partners * many].reshape(partners, many).T
        best = _best(shares, weights, loads, heavy, light, slow)
        gained = best.after < worst[heavy] - GAIN
        turn, missed = (turn + 1) % views, 0 if gained[0] else missed + 1
        if missed == views:
            if many == 1:
                break
            few, missed = max(1, many // FEWER), 0
        # No device takes part in two trades of a round, so all of them hold at once.
        one, other, give, take = (of[gained] for of in (heavy, best.light, best.give, best.take))
        shares[one, give], shares[other, take] = shares[other, take], shares[one, give]
        changed = np.concatenate((one, other))
        loads[:, changed] = _loads(weights, shares[changed], None if slow is None else slow[changed])
    return shares


class Trades(NamedTuple):
    """The best trade of each heavy device: with whom, which slots change hands, and the worse load of the two then."""

    light: Ints
    give: Ints
    take: Ints
    after: Floats


def _loads(weights: Floats, shares: Shares, slow: Floats | None) -> Floats:
    loads: Floats = weights.take(shares, axis=1).sum(axis=2)
    return loads if slow is None else loads * slow


def _best(shares: Shares, weights: Floats, loads: Floats, heavy: Ints, light: Ints, slow: Floats | None) -> Trades:
    """Of each heavy device with its partners [device, partner], the lightest first.

    Two loads a and b with a trade of x end on (a + b) / 2 ± (x - (a - b) / 2), so one distance tells both. Where one
    device takes p times as long and the other q times, both end alike with a trade of (a - b) / (p + q), at b + q times
    that; what is traded beyond adds q times as much, and what is missing p times.

    Single precision is enough to choose by, and twice as quick; loads are added up in double. Pairs of devices are the
    last axis, so that numpy's inner loops are long.
    """
    partners, width = light.shape[1], shares.shape[1]
    first, second = np.repeat(heavy, partners), light.ravel()
    above, below = loads.take(first, axis=1)[:, None], loads.take(second, axis=1)[:, None]
    p, q = (1.0, 1.0) if slow is None else (slow[first], slow[second])
    even = (above - below) / (p + q)
    gives = (weights.take(shares[first].T, axis=1) - even).astype(np.float32)
    takes = weights.take(shares[second].T, axis=1).astype(np.float32)
    after = gives[:, :, None] - takes[:, None]
    if slow is None:
        np.abs(after, out=after)
    else:
        after = np.maximum(after * np.float32(q), after * np.float32(-p))
    after += (below + q * even).astype(np.float32)[:, None]
    ends = (after.max(axis=0) if len(after) > 1 else after).reshape(width * width, -1)
    turn = np.arange(len(heavy))
    pair = turn * partners + ends.min(axis=0).reshape(-1, partners).argmin(axis=1)
    chosen = ends[:, pair]
    slots = chosen.argmin(axis=0)
    give, take = np.divmod(slots, width)
    return Trades(second[pair], give, take, chosen[slots, turn].astype(np.float64))
