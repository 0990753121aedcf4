"""Longest processing time first (LPT): each sample, heaviest first, to the device with the least so far."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def longest_first(weights: NDArray[np.float64], devices: int) -> NDArray[np.int64]:
    """The device of each sample; `weights` run from the heaviest down.

    The right start where the cost model may be wrong: devices end up holding a few long samples and many short ones
    rather than a tight fit of particular ones, and the short ones leave room to trade.

    It runs in blocks: the lightest devices take one sample each, as many as do so before any of them would come to a
    second. That is the textbook's result, tens of times quicker than a heap once devices are thousands.
    """
    owner = np.arange(len(weights))
    loads = np.zeros(devices)
    loads[: len(weights)] = weights[:devices]
    at = devices
    while at < len(weights):
        order = loads.argsort(kind="stable")
        before, block = loads[order], weights[at : at + devices]
        after = lowest_so_far(before[: len(block)] + block)
        second = before[1 : len(block)] > after[:-1]
        count = int(second.argmax()) + 1 if second.any() else len(block)
        owner[at : at + count] = order[:count]
        loads[order[:count]] += block[:count]
        at += count
    return owner


def lowest_so_far(values: NDArray[Any]) -> NDArray[Any]:
    """Of each place the lowest value up to it."""
    found: NDArray[Any] = np.minimum.accumulate(values)
    return found
