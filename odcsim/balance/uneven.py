"""Devices of unlike speeds: each gets the load that it is done with when the others are."""

from bisect import insort

import numpy as np
from numpy.typing import NDArray

from odcsim.balance import Assignment
from odcsim.balance.packing import Microbatch, fewest, pack
from odcsim.errors import InputError

CLOSE = 5e-4  # of the mean time, as in swaps
STEPS = 64  # and half a step per device
PARTNERS = 128  # devices done first that are asked to relieve the one done last

Floats = NDArray[np.float64]


def balance_uneven(lengths: NDArray[np.int64], weights: Floats, speeds: Floats, max_tokens: int) -> Assignment:
    """The right one for slow or mixed devices under on-demand: as lb-mini, and the latest device is done early.

    Counts of samples and of microbatches are free, and differ. Every weight is divided by the speed of its device.
    """
    if not len(lengths):
        raise InputError("a minibatch without samples", fix="give at least 1 sample")
    order = np.lexsort((-lengths, -weights))
    heavy, tokens, positions = weights[order], lengths[order].tolist(), order.tolist()
    groups, listed = even_out(earliest(heavy, speeds), heavy, speeds), heavy.tolist()
    slots = [_packed(group, listed, tokens, max_tokens) for group in groups]
    return tuple(tuple(tuple([positions[i] for i in part]) for part in device) for device in slots)


def named_for_speeds(balancer: str) -> None:
    """Only one balancer knows of speeds."""
    if balancer != "lb-mini":
        raise InputError(f"'{balancer}' with speeds of devices", fix="only 'lb-mini' gives fast devices more to run")


def earliest(weights: Floats, speeds: Floats, starts: Floats | float = 0.0) -> list[list[int]]:
    """Each sample, heaviest first, to the device that would be done with it first. `starts`: loads that stay."""
    groups: list[list[int]] = [[] for _ in speeds]
    loads = np.zeros(len(speeds)) + starts
    for i, weight in enumerate(weights):
        device = int(((loads + weight) / speeds).argmin())
        loads[device] += weight
        groups[device].append(i)
    return groups


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


def _packed(group: list[int], weights: list[float], tokens: list[int], max_tokens: int) -> list[Microbatch]:
    count = fewest(group, tokens, max_tokens)
    while (microbatches := pack(group, weights, tokens, max_tokens, count)) is None:
        count += 1
    return microbatches
