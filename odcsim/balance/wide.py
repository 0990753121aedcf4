"""Karmarkar-Karp into many parts: the sums of `karmarkar_karp`, with states in arrays.

What samples a part holds is not kept while states change. Every change is noted, and once there is one state, its parts
are followed back through the notes to the samples.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.longest_first import lowest_so_far

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
FEW = 64  # samples of a run that are looked at first: runs are short or long
Note = tuple["Pile", "Order", "Pile | range"]  # what changed, how it was sorted then, and what it took in


class Order(NamedTuple):
    """Where parts stood that have changed places: those from `start` to `stop` came first, in their order, and behind
    them others in another."""

    start: int
    stop: int
    others: Whole

    def undone(self, values: Whole) -> Whole:
        """By the places before, given those by the places after."""
        found, kept = np.empty_like(values), self.stop - self.start
        found[self.start : self.stop] = values[:kept]
        found[self.others] = values[kept:]
        return found


@dataclass(slots=True, eq=False)
class Pile:
    """Sums of parts, the lightest first, and the first sample of each, by which equal sums are told apart."""

    sums: Floats
    first: Whole
    rows: list[int]  # of samples, in the turn in which they were laid over each other
    part: Whole = field(init=False)  # that each of it became in the end

    @property
    def key(self) -> float:
        """The wider it spreads, the sooner it is taken from a heap."""
        return float(self.sums[0] - self.sums[-1])

    def resort(self, many: int) -> Order:
        """After its first so many parts have grown, which are put where they belong among the others."""
        order = np.lexsort((self.first[:many], self.sums[:many]))
        grown, others = self.sums[order], self.sums[many:]
        lighter = many  # where those end that stay lighter than all that have grown
        if len(others):
            places = np.searchsorted(others, grown)
            if (others[np.minimum(places, len(others) - 1)] == grown).any():
                order = np.lexsort((self.first, self.sums))
            else:
                lighter += int(places[0])
                order = np.insert(np.arange(lighter, len(self.sums)), places - places[0], order)
        self.sums = np.concatenate((self.sums[many:lighter], self.sums[order]))
        self.first = np.concatenate((self.first[many:lighter], self.first[order]))
        return Order(many, lighter, order)


def differencing_wide(weights: Floats, parts: int) -> Whole:
    """The part of each sample. There are more samples, heaviest first, than parts, and more than one part.

    A run of samples that the same state takes one after the other is taken at once, for as long as none of its parts
    would take a second one.
    """
    count, taken, notes = len(weights), 0, list[Note]()
    heap: list[tuple[float, int, Pile]] = []
    made, rising = 0, -weights
    while taken < count or len(heap) > 1:
        made -= 1
        spread = -heap[0][0] if heap else -1.0
        if taken < count and weights[taken] > spread:
            stop = min(taken + parts, int(np.searchsorted(rising, -spread)))
            state = heappop(heap)[2] if stop - taken < parts and heap else _empty(parts)
            notes.append(_take(state, weights, taken, stop))
            taken = stop
        else:
            state = heappop(heap)[2]
            beside = -heap[0][0] if heap else -1.0
            if taken < count and weights[taken] > beside:
                stop = taken + _run(state, weights[taken : taken + parts], beside)
                notes.append(_take(state, weights, taken, stop))
                taken = stop
            else:
                notes.append(_join(state, heappop(heap)[2]))
        heappush(heap, (state.key, made, state))
    return _followed(notes, heap[0][2], count)


def _run(state: Pile, weights: Floats, beside: float) -> int:
    """How many samples it takes before another state is wider, it is no wider than a sample, or a part is at its
    second."""
    if len(weights) > FEW and (run := _run(state, weights[:FEW], beside)) < FEW:
        return run
    sums = state.sums[: len(weights)]
    after = sums + weights
    low, high = lowest_so_far(after)[:-1], np.maximum(state.sums[-1], -lowest_so_far(-after))[:-1]
    ends = (sums[1:] >= low) | (high - sums[1:] < weights[1:]) | (weights[1:] <= beside)
    return int(ends.argmax()) + 1 if ends.any() else len(weights)


def differencing_equal_wide(weights: Floats, parts: int) -> tuple[Whole, Whole]:
    """The part of each sample, and the turn in which it was laid there; counts are equal within one."""
    count, notes, heap = len(weights), list[Note](), list[tuple[float, int, Pile]]()
    for row, start in enumerate(range(0, count, parts)):
        state = _empty(parts, row)
        notes.append(_take(state, weights, start, min(start + parts, count)))
        heap.append((state.key, -row, state))
    heapify(heap)
    made = -len(heap)
    while len(heap) > 1:
        state = heappop(heap)[2]
        notes.append(_join(state, heappop(heap)[2]))
        heappush(heap, (state.key, made, state))
        made -= 1
    last = heap[0][2]
    return _followed(notes, last, count), np.argsort(last.rows).repeat(parts)[:count]


def _empty(parts: int, *rows: int) -> Pile:
    return Pile(np.zeros(parts), np.full(parts, -1), list(rows))


def _take(state: Pile, weights: Floats, start: int, stop: int) -> Note:
    """A sample each for its lightest parts, the heaviest sample for the lightest one."""
    many = stop - start
    if state.first[-1] < 0:  # nobody has any
        state.sums[-many:], state.first[-many:] = weights[start:stop][::-1], np.arange(start, stop)[::-1]
        return state, Order(many, len(state.sums), np.arange(many)[::-1]), range(start, stop)
    state.sums[:many] += weights[start:stop]
    empty = state.first[:many] < 0
    state.first[:many][empty] = np.arange(start, stop)[empty]
    return state, state.resort(many), range(start, stop)


def _join(state: Pile, other: Pile) -> Note:
    """The heaviest part of one joins the lightest of the other, and so on inwards."""
    state.sums = state.sums + other.sums[::-1]
    state.first = np.where(state.first < 0, other.first[::-1], state.first)
    state.rows += other.rows
    return state, state.resort(len(state.sums)), other


def _followed(notes: list[Note], last: Pile, count: int) -> Whole:
    """The part of each sample in the last state."""
    owner = np.empty(count, dtype=np.int64)
    last.part = np.arange(len(last.sums))
    for state, moved, new in reversed(notes):
        state.part = before = moved.undone(state.part)
        if isinstance(new, Pile):
            new.part = before[::-1]
        else:
            owner[new.start : new.stop] = before[: len(new)]
    return owner
