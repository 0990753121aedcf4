"""Who runs what, in arrays: nested tuples of thousands of devices take longer to make than to simulate."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Microbatches = tuple[tuple[int, ...], ...]
Assignment = tuple[Microbatches, ...]
Whole = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """What devices run: the microbatches of a device beside each other, and their samples."""

    counts: Whole  # microbatches of each device
    sizes: Whole  # samples of each microbatch
    samples: Whole

    def __eq__(self, other: object) -> bool:
        """With the same in it."""
        if not isinstance(other, Flat):
            return NotImplemented
        mine, its = ((of.counts, of.sizes, of.samples) for of in (self, other))
        return all(map(np.array_equal, mine, its))

    def __hash__(self) -> int:
        return hash(tuple(of.tobytes() for of in (self.counts, self.sizes, self.samples)))

    def numbered(self, numbers: Whole) -> "Flat":
        """The same with sample i called `numbers[i]`."""
        return Flat(self.counts, self.sizes, numbers[self.samples])

    def opened(self, starts: Whole, end: int) -> "Flat":
        """With bundle i as its samples: from `starts[i]` to where the next one starts, of the last one up to `end`."""
        ends = np.append(starts[1:], end)
        each = np.repeat(np.arange(len(self.sizes)), self.sizes)
        sizes = np.bincount(each, (ends - starts)[self.samples], len(self.sizes)).astype(np.int64)
        return Flat(self.counts, sizes, ranges(starts[self.samples], ends[self.samples]))

    def of_sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """What each microbatch's samples add up to, one after the other."""
        each = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return np.bincount(each, values[self.samples], len(self.sizes)).astype(np.float64, copy=False)

    def ordered(self, order: Whole) -> "Flat":
        """Microbatch after microbatch in this order, as of one device."""
        ends = self.sizes.cumsum()
        places = ranges((ends - self.sizes)[order], ends[order])
        return Flat(np.array([len(order)]), self.sizes[order], self.samples[places])

    def nested(self) -> Assignment:
        """In tuples, as files and users have it."""
        microbatches = _cut(self.samples.tolist(), self.sizes)
        return tuple(_cut(microbatches, self.counts))


def ranges(starts: Whole, ends: Whole) -> Whole:
    """Numbers from each start up to its end, one range behind the other."""
    sizes = ends - starts
    found: Whole = np.arange(int(sizes.sum())) + np.repeat(starts - (sizes.cumsum() - sizes), sizes)
    return found


def _cut(values: Sequence[T], sizes: Whole) -> list[tuple[T, ...]]:
    ends = sizes.cumsum().tolist()
    return [tuple(values[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=False)]


def flattened(devices: Sequence[Sequence[Sequence[int]]]) -> Flat:
    microbatches = list(chain.from_iterable(devices))
    counts = np.fromiter(map(len, devices), np.int64, len(devices))
    sizes = np.fromiter(map(len, microbatches), np.int64, len(microbatches))
    return Flat(counts, sizes, np.fromiter(chain.from_iterable(microbatches), np.int64, int(sizes.sum())))


NOTHING = flattened(((),))  # a queue without entries: of one device that stands for any
