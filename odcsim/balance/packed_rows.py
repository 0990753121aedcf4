"""What devices hold into balanced microbatches under the token limit, of all devices at once: `packing.pack` in arrays.

Arrays are [device, place], as `trades.Held`; samples stand heaviest first.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.in_rows import split_rows
from odcsim.balance.packing import Microbatch, fewest, pack, packed
from odcsim.balance.trades import Held, listed
from odcsim.flat import Flat, flattened

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
FEW, WIDE = 32, 48  # devices from which on arrays are quicker, and samples of one up to which they are


def pack_alike(held: Held, weights: Floats, tokens: Whole, max_tokens: int) -> Flat:
    """As many microbatches on every device, and as few as fit by their balanced splits; the last ones may be empty."""
    rows = _Holding(held, weights, tokens, max_tokens)
    if not rows.quick:
        return flattened(_alike(listed(held, len(weights)), weights.tolist(), tokens.tolist(), max_tokens))
    count = max(int(rows.least.max()), 1)
    every = over = np.arange(len(held))
    while True:
        where, fits = rows.split(over, count)
        if not fits.all():  # so all of them need more; whom that is for is asked first
            over, count = over[~fits], count + 1
        elif len(over) < len(every):
            over = every
        else:
            return rows.flat(where, np.full(len(held), count))


def pack_each(held: Held, weights: Floats, tokens: Whole, max_tokens: int) -> Flat:
    """The fewest microbatches of each device whose balanced split fits; a device without samples has none."""
    rows = _Holding(held, weights, tokens, max_tokens)
    if not rows.quick:
        short, long = weights.tolist(), tokens.tolist()
        return flattened([packed(group, short, long, max_tokens) for group in listed(held, len(weights))])
    count, where, open_ = rows.least.copy(), np.zeros_like(rows.held), rows.least > 0
    while open_.any():
        asked = np.flatnonzero(open_ & (count == count[open_].min()))
        found, fits = rows.split(asked, int(count[asked[0]]))
        where[asked[fits]] = found[fits]
        open_[asked[fits]] = False
        count[asked[~fits]] += 1
    return rows.flat(where, count)


class _Holding:
    """What devices hold, without places that all of them leave empty."""

    def __init__(self, held: Held, weights: Floats, tokens: Whole, max_tokens: int) -> None:
        self.none, self.weights, self.tokens, self.max_tokens = len(weights), weights, tokens, max_tokens
        self.held = np.sort(held, axis=1)[:, : max(1, int((held < self.none).sum(axis=1).max()))]
        self.cost, self.size = np.append(weights, 0.0)[self.held], np.append(tokens, 0)[self.held]
        self.least = -(-self.size.sum(axis=1) // max_tokens)  # microbatches
        # A sample that weighs nothing would be taken for none.
        self.quick = len(held) >= FEW and self.held.shape[1] <= WIDE and bool(weights.min() > 0)

    def split(self, rows: Whole, count: int) -> tuple[Whole, NDArray[np.bool_]]:
        """The microbatch of each sample [row, place], and whether all are under the limit."""
        where, sure = split_rows(self.cost[rows], count)
        cell = np.arange(len(rows))[:, None] * count + np.minimum(where, count - 1)
        tokens = np.bincount(cell.ravel(), self.size[rows].ravel(), len(rows) * count).reshape(-1, count)
        fits = np.asarray((tokens <= self.max_tokens).all(axis=1))
        for row in np.flatnonzero(~sure).tolist():
            fits[row] = self._plain(where[row], int(rows[row]), count)
        return where, fits

    def _plain(self, where: Whole, device: int, count: int) -> bool:
        """Where sums are equal."""
        group = self.held[device][self.held[device] < self.none]
        numbered = list(range(len(group)))
        found = pack(numbered, self.weights[group].tolist(), self.tokens[group].tolist(), self.max_tokens, count)
        for part, samples in enumerate(found or []):
            where[samples] = part
        return found is not None

    def flat(self, where: Whole, counts: Whole) -> Flat:
        """Microbatches in their order, and samples in theirs."""
        return flat_rows(self.held, self.held < self.none, where, counts)


def flat_rows(held: Held, there: NDArray[np.bool_], where: Whole, counts: Whole) -> Flat:
    """Samples of every device, by the numbers of their microbatches on it."""
    first = counts.cumsum() - counts
    cell = (first[:, None] + where)[there]
    return Flat(counts, np.bincount(cell, minlength=int(counts.sum())), held[there][cell.argsort(kind="stable")])


def _alike(groups: list[list[int]], weights: list[float], tokens: list[int], limit: int) -> list[list[Microbatch]]:
    count = max(fewest(group, tokens, limit) for group in groups)
    waiting, done = deque(range(len(groups))), dict[int, list[Microbatch]]()
    while waiting:
        microbatches = pack(groups[waiting[0]], weights, tokens, limit, count)
        if microbatches is None:
            count += 1
            waiting.extend(done)
            done.clear()
        else:
            done[waiting.popleft()] = microbatches
    return [done[device] for device in range(len(groups))]
