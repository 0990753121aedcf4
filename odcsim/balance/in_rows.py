"""Differencing of many devices' samples at once, each device's into as many microbatches.

Arrays are [device, place]: samples stand heaviest first, and a cost of 0 stands for none.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Truths = NDArray[np.bool_]
GONE = -1.0  # the spread of a state that is part of another, or that never was


class Split(NamedTuple):
    """The microbatch of each sample, the heaviest first, and whether `packing.pack` finds the same to the last sample:
    it does but where sums are equal, which it tells apart by the samples in them."""

    where: Whole
    sure: Truths


def split_rows(cost: Floats, parts: int) -> Split:
    """What `packing.pack` makes of each row. The plain form of Karmarkar-Karp, a state for every sample, takes one step
    of all rows at once."""
    many = (cost > 0).sum(axis=1)
    where = np.broadcast_to(np.arange(cost.shape[1]) if parts > 1 else 0, cost.shape).copy()
    sure = np.ones(len(cost), dtype=bool)
    shared = np.flatnonzero(many > parts) if parts > 1 else many[:0]
    if len(shared):
        shared = shared[(-many[shared]).argsort(kind="stable")]
        here = cost[shared]
        split = _differenced(here, many[shared], parts)
        where[shared], ranked = _heaviest_first(here, split.where, parts)
        sure[shared] = split.sure & ranked
    return Split(where, sure)


def _differenced(cost: Floats, many: Whole, parts: int) -> Split:
    """The part of each sample in the last state. Rows with the most samples come first: they are the last to end."""
    rows, width = cost.shape
    sums = np.zeros((rows, width, parts))
    sums[:, :, -1] = cost
    spread = np.where(cost > 0, cost, GONE)
    place = np.full((rows, width), parts - 1)
    state = np.broadcast_to(np.arange(width, dtype=np.int16), (rows, width)).copy()
    sure, row = np.ones(rows, dtype=bool), np.arange(rows)
    for step in range(1, width):
        row = row[: int((many > step).sum())]
        here = slice(0, len(row))
        (one, first), (other, second) = (_widest(spread[here], row) for _ in range(2))
        order, added = _joined(sums[row, one] + sums[row, other, ::-1])
        sure[here] &= (first > second) & (second > spread[here].max(axis=1)) & _apart(added)
        sums[row, one], spread[row, one] = added, added[:, -1] - added[:, 0]
        its = state[here] == other[:, None].astype(np.int16)
        mine = its | (state[here] == one[:, None].astype(np.int16))
        np.copyto(state[here], one[:, None].astype(np.int16), where=its)
        np.subtract(parts - 1, place[here], out=place[here], where=its)
        np.copyto(place[here], _turned(order)[row[:, None], place[here]], where=mine)
    return Split(place, sure)


def _widest(spread: Floats, row: Whole) -> tuple[Whole, Floats]:
    """The state of each row that spreads most, which is taken out, and its spread."""
    found = spread.argmax(axis=1)
    widest = spread[row, found]
    spread[row, found] = GONE
    return found, widest


def _turned(order: Whole) -> Whole:
    """The place in its row that each value has come to."""
    places = np.empty_like(order)
    places[np.arange(len(order))[:, None], order] = np.arange(order.shape[1])
    return places


def _joined(sums: NDArray[Any]) -> tuple[Whole, Floats]:
    order = sums.argsort(axis=1)
    return order, np.take_along_axis(sums, order, axis=1)


def _apart(rising: Floats) -> Truths:
    """Whether no two sums are equal, but for those of parts that nobody is in yet."""
    apart: Truths = ((rising[:, 1:] > rising[:, :-1]) | (rising[:, 1:] == 0)).all(axis=1)
    return apart


def _heaviest_first(cost: Floats, where: Whole, parts: int) -> tuple[Whole, Truths]:
    """Parts by their loads, added up sample by sample; and whether no two are equal."""
    cell = np.arange(len(cost))[:, None] * parts + where
    loads = np.bincount(cell.ravel(), cost.ravel(), len(cost) * parts).reshape(-1, parts)
    order, falling = _joined(-loads)
    return np.take_along_axis(_turned(order), where, axis=1), _apart(falling)
