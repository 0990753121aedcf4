"""Devices of unlike speeds: each gets the load that it is done with when the others are."""

from bisect import insort
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.pack import pack_balanced, pack_fewest
from odcsim.balance.partition import hold, laid
from odcsim.balance.trades import settle
from odcsim.flat import Flat

CLOSE = 5e-4  # of the mean time, as in swaps
STEPS = 64  # and half a step per device
PARTNERS = 128  # devices done first that are asked to relieve the one done last
MANY = 48  # devices from which on trades of many at once are quicker, and find as much
WIDE = 1024  # samples of one device, from which on arrays [device, slot] would be mostly empty
KINDS = 12  # speeds told apart at most when samples are first dealt out to many devices

Floats = NDArray[np.float64]


def by_speed(weights: Floats, tokens: NDArray[np.int64], speeds: Floats, max_tokens: int) -> Flat:
    """The right one for slow or mixed devices under on-demand: as lb-mini, and the latest device is done early.

    Counts of samples and of microbatches are free, and differ. Every weight is divided by the speed of its device.
    Trades are of many devices at once in arrays, of few ones (or of one that holds nearly all) one by one.
    """
    groups = earliest(weights, speeds)
    if len(groups) < MANY or max(map(len, groups)) > WIDE:
        return pack_balanced(laid(even_out(groups, weights, speeds), len(weights)), weights, tokens, max_tokens)
    count, devices = len(weights), len(groups)
    scaled, slow = weights / (weights.sum() or 1.0), speeds.sum() / speeds
    held = settle(hold(owners(groups, count), devices), scaled, slow).held
    if devices <= PARTNERS:  # all of them are asked then, so a little more may be found
        left = [row[row < count].tolist() for row in held]
        held = hold(owners(even_out(left, weights, speeds), count), devices)
    return pack_fewest(held, weights, tokens, max_tokens)


def owners(groups: list[list[int]], samples: int) -> NDArray[np.int64]:
    """The device of each sample."""
    owner = np.empty(samples, dtype=np.int64)
    for device, group in enumerate(groups):
        owner[group] = device
    return owner


def earliest(weights: Floats, speeds: Floats, starts: Floats | float = 0.0) -> list[list[int]]:
    """Each sample, heaviest first, to the device that would be done with it first. `starts`: loads that stay.

    Of devices as fast as each other, one that is done first is asked for all of them.
    """
    groups: list[list[int]] = [[] for _ in speeds]
    queues = _queues(speeds, np.zeros(len(speeds)) + starts)
    tops = [queue[0] for queue in queues]
    for i, weight in enumerate(weights.tolist()):
        ends = [time + weight * slow for time, slow, _ in tops]
        first = min(ends)
        kind = ends.index(first)
        _, slow, device = tops[kind]
        heapreplace(queues[kind], (first, slow, device))
        tops[kind] = queues[kind][0]
        groups[device].append(i)
    return groups


def _queues(speeds: Floats, loads: Floats) -> list[list[tuple[float, float, int]]]:
    """Heaps of (time, seconds of a weight of 1, device), one for each speed, or for like ones."""
    kinds, kind = np.unique(speeds, return_inverse=True)
    if len(kinds) > MANY:
        steps = np.log(speeds / kinds[0]) / np.log(kinds[-1] / kinds[0])
        kind = np.minimum((steps * KINDS).astype(np.int64), KINDS - 1)
    queues: list[list[tuple[float, float, int]]] = [[] for _ in range(int(kind.max()) + 1)]
    rows = zip(kind.tolist(), (loads / speeds).tolist(), (1 / speeds).tolist(), strict=True)
    for device, (k, time, slow) in enumerate(rows):
        queues[k].append((time, slow, device))
    for queue in queues:
        heapify(queue)
    return [queue for queue in queues if queue]


def even_out(groups: list[list[int]], weights: Floats, speeds: Floats, starts: Floats | float = 0.0) -> list[list[int]]:
    """Trades that make the latest device earlier, as long as there are any; `weights` run from the heaviest down.

    `starts` are loads that each device has beside its group and that stay.
    """
    held = [sorted(group) for group in groups]
    fixed = np.zeros(len(speeds)) + starts
    loads = np.array([weights[group].sum() for group in held]) + fixed
    mean = loads.sum() / speeds.sum()
    for _ in range(STEPS + len(groups) // 2):
        times = loads / speeds
        last = int(times.argmax())
        if times[last] <= (1 + CLOSE) * mean:
            break
        trade = _best_trade(held, weights, loads, speeds, last)
        if trade is None or trade[0] >= times[last] - CLOSE / 8 * mean:
            break
        _, other, give, take = trade
        held[last].remove(give)
        if take >= 0:
            held[other].remove(take)
            insort(held[last], take)
        insort(held[other], give)
        for device in (last, other):
            loads[device] = weights[held[device]].sum() + fixed[device]
    return held


def _best_trade(
    held: list[list[int]], weights: Floats, loads: Floats, speeds: Floats, last: int
) -> tuple[float, int, int, int] | None:
    """When the later of the two is done after the best trade, with whom, what is given and what taken (-1: nothing)."""
    others = [int(d) for d in (loads / speeds).argsort(kind="stable")[:PARTNERS] if d != last]
    if not others or not held[last]:
        return None
    takes = np.concatenate([[-1, *held[other]] for other in others])
    partners = np.repeat(others, [1 + len(held[other]) for other in others])
    taken = np.where(takes >= 0, weights[takes], 0.0)
    moved = weights[held[last]][:, None] - taken
    ends = np.maximum((loads[last] - moved) / speeds[last], (loads[partners] + moved) / speeds[partners])
    best = int(ends.argmin())
    give, take = divmod(best, len(takes))
    return float(ends.flat[best]), int(partners[take]), held[last][give], int(takes[take])
