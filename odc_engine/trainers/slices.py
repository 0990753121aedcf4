"""Microbatches of samples of like length, as many on all devices, where a batch gets as long as its longest sample."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from odc_engine.trainers.minibatches import Places

HALVINGS = 30  # of what a microbatch may cost, until it is found


def padded_slices(
    places: Sequence[int], lengths: NDArray[np.int64], weights: NDArray[np.float64], devices: int, max_tokens: int
) -> list[list[Places]]:
    """Of each device its microbatches, of at most `max_tokens` with padding. Those that meet cost alike.

    Samples are sorted by length and cut where the next one would make a microbatch cost more than any has to. No cut
    has fewer microbatches on each device, but where samples are too few for that some have fewer than others.
    """
    order = np.array(sorted(places, key=lambda i: (-lengths[i], -weights[i], i)))
    cut = _LongestFirst(lengths[order], weights[order], max_tokens)
    count = -(-len(cut.within(np.inf)) // devices) * devices
    low, high = 0.0, 2 * float(cut.costs.max()) * len(order)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if len(cut.within(middle)) <= count else (middle, high)
    starts = cut.halved(cut.within(high), count)
    parts = [tuple(order[a:b].tolist()) for a, b in zip(starts, [*starts[1:], len(order)], strict=True)]
    return _dealt(parts, [cut.cost(a, b) for a, b in zip(starts, [*starts[1:], len(order)], strict=True)], devices)


class _LongestFirst:
    """Samples, and where microbatches of them begin."""

    def __init__(self, lengths: NDArray[np.int64], weights: NDArray[np.float64], max_tokens: int) -> None:
        self.costs = np.maximum(weights, 1e-9)
        self._most = np.maximum(max_tokens // lengths, 1).tolist()  # samples in a microbatch that begins with it
        self._costs: list[float] = self.costs.tolist()

    def cost(self, begin: int, end: int) -> float:
        """All of a microbatch cost what its longest does."""
        return (end - begin) * self._costs[begin]

    def within(self, bound: float) -> list[int]:
        """The longest microbatches that cost no more, or have one sample."""
        starts, place = [], 0
        while place < len(self._costs):
            starts.append(place)
            place += int(max(1, min(self._most[place], bound // self._costs[place])))
        return starts

    def halved(self, starts: list[int], count: int) -> list[int]:
        """So many, if there are samples for that: the costliest are cut in two."""
        found = list(starts)
        while len(found) < min(count, len(self._costs)):
            ends = [*found[1:], len(self._costs)]
            wide = [(self.cost(a, b), a, b) for a, b in zip(found, ends, strict=True) if b - a > 1]
            _, begin, end = max(wide)
            found = sorted([*found, (begin + end) // 2])
        return found


def _dealt(parts: list[Places], costs: list[float], devices: int) -> list[list[Places]]:
    """Step by step from the costliest down; inside a step the costliest to the device that has had least."""
    heaviest = sorted(range(len(parts)), key=lambda one: -costs[one])
    found: list[list[Places]] = [[] for _ in range(devices)]
    totals = [0.0] * devices
    for first in range(0, len(parts), devices):
        least = sorted(range(devices), key=lambda device: totals[device])
        for one, device in zip(heaviest[first : first + devices], least, strict=False):
            found[device].append(parts[one])
            totals[device] += costs[one]
    return found
