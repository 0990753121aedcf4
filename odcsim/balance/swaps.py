"""Bounded swaps that lower the heaviest device or lift the lightest one.

A trade gives one sample of a heavier device for one of a lighter device so that their two loads come closer; a device
with more samples than the other may also give one for nothing. The sum of squared loads falls with each, so no state
returns, and counts that are equal stay so. Many devices are paired all at once in numpy, heaviest with lightest; the
last steps, and all of them with few devices, go one by one in plain lists, which is quicker there. Once no trade lowers
the heaviest device it ends: lifting others would not end the minibatch any sooner.
"""

from bisect import insort

import numpy as np

from odcsim.balance.partition import Floats, Held, Whole, laid, listed

CLOSE = 5e-4  # of the mean load: lesser spreads are far below the error of any cost model
MANY = 24  # devices from which on numpy is quicker
ROUNDS = 64
PATIENCE = 8  # rounds without a gain for the heaviest device, each with partners further away
STEPS = 64  # and half a step per device
PARTNERS = 128  # lightest devices asked to relieve the heaviest one
TRADES = 1 << 16  # compared in one round at most, which bounds its time and memory

Device = tuple[float, int]  # load and number: a sorted list of them runs from the lightest to the heaviest


def even_out(held: Held, weights: Floats) -> Held:
    """The same samples with a lesser (never a greater) spread of loads; `weights` run from the heaviest sample down."""
    samples, plain = len(weights), weights.tolist()
    close = CLOSE * sum(plain) / len(held)
    if len(held) < MANY:
        groups = listed(np.sort(held, axis=1), samples)
        _one_by_one(groups, [_load(group, plain) for group in groups], plain, close)
        return laid(groups, samples)
    held, loads = _rounds(held, np.append(weights, 0.0), close)
    if loads.max() > max(loads.min() + close, weights[0]):
        changed = _Lists(held, samples)
        _one_by_one(changed, loads.tolist(), plain, close)
        held = changed.written()
    return held


class _Lists(dict[int, list[int]]):
    """What devices hold as lists, of those that are asked for."""

    def __init__(self, held: Held, samples: int) -> None:
        self.held, self.samples = held, samples

    def __missing__(self, device: int) -> list[int]:
        self[device] = [i for i in self.held[device].tolist() if i < self.samples]
        return self[device]

    def written(self) -> Held:
        """All of them, with what has changed."""
        width = max([self.held.shape[1], *map(len, self.values())])
        held = np.pad(self.held, ((0, 0), (0, width - self.held.shape[1])), constant_values=self.samples)
        for device, group in self.items():
            held[device] = group + [self.samples] * (width - len(group))
        return held


Lists = list[list[int]] | _Lists


def _one_by_one(held: Lists, loads: list[float], weights: list[float], close: float) -> None:
    """Trades of the heaviest device; samples of each stand in order, which is kept."""
    ranked = sorted(zip(loads, range(len(loads)), strict=True))
    for _ in range(STEPS + len(ranked) // 2):
        done = ranked[-1][0] <= max(ranked[0][0] + close, weights[0])
        if done or not _lower(ranked, held, weights, close / 8):
            break


def _lower(ranked: list[Device], held: Lists, weights: list[float], gain: float) -> bool:
    """Relieve the heaviest device by a trade with the lightest one that can; false where none can."""
    load, heavy = ranked[-1]
    above = held[heavy]
    for place, (other, light) in enumerate(ranked[: min(PARTNERS, len(ranked) - 1)]):
        gap, below = load - other, held[light]
        left, give, take = _best_trade(above, below, weights, gap, len(above) > len(below))
        if left < gap - gain:
            given = above.pop(give)
            if take < len(below):
                insort(above, below.pop(take))
            insort(below, given)
            del ranked[-1], ranked[place]
            insort(ranked, (_load(above, weights), heavy))
            insort(ranked, (_load(below, weights), light))
            return True
    return False


def _best_trade(
    above: list[int], below: list[int], weights: list[float], gap: float, move: bool
) -> tuple[float, int, int]:
    """The gap after the best trade, the place given and the place taken (one past the end: nothing is taken).

    Both lists run from the heaviest sample down, so one walk along both meets the best pair.
    """
    best, give, take = gap, 0, 0
    gives = [2 * weights[i] - gap for i in above]
    takes = [2 * weights[i] for i in below]
    if move:
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


def _load(group: list[int], weights: list[float]) -> float:
    return sum([weights[i] for i in group])


def _rounds(held: Held, weights: Floats, close: float) -> tuple[Held, Floats]:
    """Trades of many pairs of devices at once, and loads then.

    An empty slot is a sample of no weight (the last of `weights`).
    """
    nothing, width = len(weights) - 1, held.shape[1]
    slots = held.copy()
    loads = weights[slots].sum(axis=1)
    pairs = max(1, min(len(slots) // 2, TRADES // width**2))
    turn, change = np.arange(pairs), np.empty((pairs, width, width))
    left = change.reshape(pairs, -1)  # of the gap, after each trade
    uneven = bool((slots == nothing).any())
    order, idle = np.arange(len(slots)), 0
    for _ in range(ROUNDS):
        order = _lightest_first(loads, order)
        heavy, light = order[: -pairs - 1 : -1], order[(turn + (1 << idle) - 1) % pairs]
        gaps = loads[heavy] - loads[light]
        if loads[heavy[0]] <= weights[0]:
            break
        np.subtract(weights[slots[heavy]][:, :, None], weights[slots[light]][:, None, :], out=change)
        np.abs(np.subtract(gaps[:, None, None], np.multiply(change, 2, out=change), out=change), out=change)
        best = left.argmin(axis=1)
        gained = left[turn, best] < gaps - close / 8
        if uneven:
            more = (slots[heavy] != nothing).sum(axis=1) > (slots[light] != nothing).sum(axis=1)
            gained &= (slots[light, best % width] != nothing) | more
        idle = 0 if gained[0] else idle + 1
        if idle > min(PATIENCE, pairs.bit_length()):
            break
        heavy, light, (give, take) = heavy[gained], light[gained], np.divmod(best[gained], width)
        slots[heavy, give], slots[light, take] = slots[light, take], slots[heavy, give]
        changed = np.concatenate((heavy, light))
        loads[changed] = weights[slots[changed]].sum(axis=1)
    slots.sort(axis=1)
    return slots, added_up(weights[slots])


def _lightest_first(loads: Floats, before: Whole) -> Whole:
    """Devices by their loads, of like ones the lower number first. `before`: an order that is about right, from which
    that takes a tenth of the time where no loads are alike."""
    order = before[loads[before].argsort(kind="stable")]
    rising = loads[order]
    return loads.argsort(kind="stable") if (rising[1:] == rising[:-1]).any() else order


def added_up(rows: Floats) -> Floats:
    """Of each row, one sample after the other: as lists are added up, to the last bit."""
    return rows.cumsum(axis=1)[:, -1]
