"""Trades of samples between devices, judged by the worst of several scenarios of cost.

What devices hold is an array [device, slot]. Every slot names a sample; the number past the last sample stands for an
empty slot and weighs nothing, so that giving a sample for nothing is a trade too. Weights are an array
[scenario, sample], each scenario in units of its own lower bound: a load of 1 cannot be beaten.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.partition import Floats, Held, Whole

CLOSE = 5e-4  # above the lower bound: less is far below the error of any cost model
ENOUGH = 2 * CLOSE  # above the lower bound: below this, a tighter fit may cost a microbatch more than it saves
GAIN = CLOSE / 16  # the least that a trade must bring
SHARE = 0.6  # devices this far up between the bound and the heaviest load are relieved in one round
ROUNDS = 16
FEWER = 8  # times fewer devices are relieved, each with more partners, once the heaviest one finds no trade
TRADES = 1 << 17  # compared in one round at most, which bounds its time and memory


class Trades(NamedTuple):
    """The best trade of each heavy device: with whom, which slots change hands, and the worse load of the two then."""

    heavy: Whole
    light: Whole
    give: Whole
    take: Whole
    after: Floats


class Relieved(NamedTuple):
    """What devices hold after trades, the worst load then, and whether more rounds would find no trade to lower it."""

    held: Held
    top: float
    ended: bool


def settle(held: Held, scaled: Floats, slow: Floats | None = None) -> Relieved:
    """Rounds of trades in one scenario for as long as they halve what is left above the bound."""
    relieved, before = relieve(held, scaled[None], slow), math.inf
    while not relieved.ended and ENOUGH < relieved.top - 1 < (before - 1) / 2:
        before = relieved.top
        relieved = relieve(relieved.held, scaled[None], slow)
    return relieved


def relieve(held: Held, scenarios: Floats, slow: Floats | None = None) -> Relieved:
    """Lower the heaviest device, where heavy means in its worst scenario.

    `slow`: how many times as long each device takes, where they are not alike. A load is a time then.

    In each round the heaviest devices trade at once, each with partners of its own among the light ones. Those are
    light by their worst scenario or by one of them, in turn: a device that is heavy only if long samples cost more
    than believed is helped by one that is heavy only if they cost less. The fewer devices are left to relieve, the
    more partners each has. It ends where the heaviest one finds no trade with anybody asked.
    """
    held = held.copy()
    weights = np.concatenate((scenarios, np.zeros((len(scenarios), 1))), axis=1)
    loads = _loads(weights, held, slow)
    views = len(loads) + 1 if len(loads) > 1 else 1
    few, turn, missed = len(held) // 2, 0, 0
    for _ in range(ROUNDS if few else 0):
        worst = loads.max(axis=0)
        top = worst.max()
        if top <= 1 + CLOSE:
            return Relieved(held, float(top), True)
        many = min(few, int((worst > 1 + SHARE * (top - 1)).sum()))
        heavy, light = _pairs(worst, loads[turn - 1] if turn else worst, many, held.shape[1])
        best = _best(held, weights, loads, heavy, light, slow)
        gained = best.after < worst[heavy] - GAIN
        turn, missed = (turn + 1) % views, 0 if gained[0] else missed + 1
        if missed == views:
            if len(heavy) == 1:
                return Relieved(held, float(top), True)
            few, missed = max(1, len(heavy) // FEWER), 0
        _apply(held, weights, loads, best, gained, slow)
    return Relieved(held, float(loads.max()), not few)


def _pairs(worst: Floats, view: Floats, many: int, width: int) -> tuple[Whole, Whole]:
    """Devices to relieve, heaviest first, and the partners of each [device, partner], lightest first."""
    order = worst.argsort(kind="stable")
    many = min(many, max(1, TRADES // width**2))
    heavy, rest = order[: -many - 1 : -1], order[:-many]
    if view is not worst:
        rest = rest[view[rest].argsort(kind="stable")]
    partners = min(len(rest) // many, max(1, TRADES // (many * width**2)))
    return heavy, rest[: partners * many].reshape(partners, many).T


def _loads(weights: Floats, held: Held, slow: Floats | None) -> Floats:
    loads: Floats = weights.take(held, axis=1).sum(axis=2)
    return loads if slow is None else loads * slow


def _best(held: Held, weights: Floats, loads: Floats, heavy: Whole, light: Whole, slow: Floats | None) -> Trades:
    """Two loads a and b with a trade of x end on (a + b) / 2 ± (x - (a - b) / 2), so one distance tells both.

    Where one device takes p times as long and the other q times, both end alike with a trade of (a - b) / (p + q),
    at b + q times that; what is traded beyond adds q times as much, and what is missing p times.

    Single precision is enough to choose by, and twice as quick; loads are added up in double. Pairs of devices are the
    last axis, so that numpy's inner loops are long.
    """
    partners, width = light.shape[1], held.shape[1]
    first, second = np.repeat(heavy, partners), light.ravel()
    above, below = loads.take(first, axis=1)[:, None], loads.take(second, axis=1)[:, None]
    p, q = (1.0, 1.0) if slow is None else (slow[first], slow[second])
    even = (above - below) / (p + q)
    gives = (weights.take(held[first].T, axis=1) - even).astype(np.float32)
    takes = weights.take(held[second].T, axis=1).astype(np.float32)
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
    return Trades(heavy, second[pair], give, take, chosen[slots, turn].astype(np.float64))


def _apply(
    held: Held, weights: Floats, loads: Floats, best: Trades, gained: NDArray[np.bool_], slow: Floats | None
) -> None:
    """No device takes part in two trades of a round, so all of them hold at once."""
    heavy, light, give, take = (x[gained] for x in (best.heavy, best.light, best.give, best.take))
    held[heavy, give], held[light, take] = held[light, take], held[heavy, give]
    changed = np.concatenate((heavy, light))
    loads[:, changed] = _loads(weights, held[changed], None if slow is None else slow[changed])
