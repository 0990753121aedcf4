"""split: samples that cost more than a device's share of the minibatch are run by several devices together.

Context parallelism for outliers only. Everything else with exact semantics leaves the floor that the longest sample
sets where devices have few samples each. Simulated alone: the engine runs every sample on one device.
"""

from collections.abc import Callable
from heapq import heapify, heapreplace
from math import gcd, log2

import numpy as np
from numpy.typing import NDArray

from odcsim.balance import lb_mini
from odcsim.errors import InputError
from odcsim.flat import Assignment
from odcsim.heuristics.balancer import Balancer, Deal, Work, assigned
from odcsim.heuristics.packing import Microbatch, packed
from odcsim.heuristics.uneven import earliest, even_out
from odcsim.schedule import part

LARGEST = 8  # devices on one sample: those of a usual node, since what they exchange takes quick links
STEPS = 8  # targets tried between one and its double
LOWEST = 0.5  # of the mean load: lower targets split more than they even out
FINALISTS = 4  # choices of gangs that are planned to the end

Floats = NDArray[np.float64]
Seconds = Callable[[float], float]


def split_outliers(
    lengths: NDArray[np.int64],
    weights: Floats,
    devices: int,
    max_tokens: int,
    overhead: float,
    *,
    largest: int = LARGEST,
    seconds: Seconds = float,
) -> tuple[Assignment, tuple[int, ...]]:
    """The right one to see what context parallelism for outliers would bring, at one to four samples per device.

    An assignment, and of how many devices that run each sample together. A sample of several devices is alone in the
    first microbatch of each: so they begin together, their parts are equal, and they stay in step. Each device is of
    one such gang at most. Gangs are of 2, 4, ... `largest` devices whose numbers follow one another; where `largest`
    divides the devices of a node, none spans two. `seconds` is what a microbatch of so much weight takes: a gang means
    more microbatches, which is dear where they cost much beside their samples. Without a gain it is lb-mini.
    """
    plain = assigned(lb_mini.BALANCER, Work(lengths, weights, devices, max_tokens)).devices
    order = np.lexsort((-lengths, -weights))
    heavy, tokens, positions = weights[order], lengths[order].tolist(), order.tolist()
    alone = np.ones(len(lengths), dtype=np.int64)
    best, shares = plain, alone
    last = _last(plain, weights, seconds)
    for gangs in _candidates(heavy, _last(plain, weights, float), devices, overhead, largest, seconds):
        slots = _slots(heavy, tokens, gangs, devices, max_tokens, overhead, seconds)
        assignment = tuple(tuple(tuple([positions[i] for i in held]) for held in device) for device in slots)
        sizes = alone.copy()
        sizes[order[: len(gangs)]] = gangs
        parts = weights * [part(g, overhead) for g in sizes.tolist()]
        if (end := _last(assignment, parts, seconds)) < last:
            best, shares, last = assignment, sizes, end
    return best, tuple(shares.tolist())


def split(work: Work) -> Deal:
    """What `split_outliers` assigns where somebody says what splitting costs; no gang spans two nodes."""
    if work.split_overhead is None:
        raise InputError("'split' needs to know what splitting costs", fix="give --split-overhead, such as 0.05")
    slots, gangs = split_outliers(
        work.tokens,
        work.weights,
        devices=work.devices,
        max_tokens=work.max_tokens,
        overhead=work.split_overhead,
        largest=gcd(LARGEST, work.node),
        seconds=work.seconds,
    )
    return Deal(slots, gangs=gangs if max(gangs) > 1 else ())


BALANCER = Balancer(
    "split",
    split,
    "samples too long for one device run on several: simulated only, with --split-overhead",
    free_counts=True,
    weighs_transfers=True,
    gangs=True,
)


def _last(assignment: Assignment, weights: Floats, seconds: Seconds) -> float:
    """When the last device is done."""
    each = weights.tolist()
    return max(sum([seconds(sum([each[i] for i in held])) for held in device]) for device in assignment)


def _candidates(
    weights: Floats, peak: float, devices: int, overhead: float, largest: int, seconds: Seconds
) -> list[list[int]]:
    """Sizes of gangs for the heaviest samples that promise less than the peak, the best first."""
    promises: dict[tuple[int, ...], float] = {}
    for target in _targets(weights, devices, peak):
        gangs = _gangs(weights, devices, overhead, target, largest)
        if gangs and tuple(gangs) not in promises:
            promises[tuple(gangs)] = _peak(weights, gangs, devices, overhead, seconds)
    lower = sorted((end, gangs) for gangs, end in promises.items() if end < peak)
    return [list(gangs) for _, gangs in lower[:FINALISTS]]


def _targets(weights: Floats, devices: int, peak: float) -> Floats:
    """What no part may weigh more than: from a fraction of the mean load up to what lb-mini reaches."""
    low = LOWEST * float(weights.sum()) / devices
    doublings = log2(peak / low) if peak > low > 0 else 0.0
    return low * 2 ** (np.arange(np.ceil(STEPS * doublings)) / STEPS)


def _gangs(weights: Floats, devices: int, overhead: float, target: float, largest: int) -> list[int] | None:
    """The fewest devices for each sample over the target, heaviest first; None where no gang would be large enough."""
    sizes = [2**k for k in range(1, min(largest, devices).bit_length())]
    gangs: list[int] = []
    for weight in weights[weights > target].tolist():
        size = next((g for g in sizes if weight * part(g, overhead) <= target), 0)
        if not size or sum(gangs) + size > devices:
            return None
        gangs.append(size)
    return gangs


def _starts(weights: Floats, gangs: list[int], devices: int, overhead: float, seconds: Seconds) -> Floats:
    """What gangs take of each device. Sizes never grow along the list, so each begins at a multiple of its own."""
    each = [seconds(float(weights[i]) * part(g, overhead)) for i, g in enumerate(gangs) for _ in range(g)]
    return np.array(each + [0.0] * (devices - len(each)))


def _peak(weights: Floats, gangs: list[int], devices: int, overhead: float, seconds: Seconds) -> float:
    """The largest load if every other sample, heaviest first, goes to the device with the least so far."""
    loads = _starts(weights, gangs, devices, overhead, seconds).tolist()
    heapify(loads)
    for weight in weights[len(gangs) :].tolist():
        heapreplace(loads, loads[0] + weight)
    return float(max(loads))


def _slots(
    weights: Floats,
    tokens: list[int],
    gangs: list[int],
    devices: int,
    max_tokens: int,
    overhead: float,
    seconds: Seconds,
) -> list[list[Microbatch]]:
    starts = _starts(weights, gangs, devices, overhead, seconds)
    rest, same, first = weights[len(gangs) :], np.ones(devices), len(gangs)
    groups = even_out(earliest(rest, same, starts), rest, same, starts)
    listed = weights.tolist()
    slots: list[list[Microbatch]] = [[[i]] for i, g in enumerate(gangs) for _ in range(g)]
    slots += [[] for _ in range(devices - len(slots))]
    for device, group in zip(slots, groups, strict=True):
        device += packed([first + i for i in group], listed, tokens, max_tokens)
    return slots
