"""What every microbatch of a run computed: its seconds, and what it held."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.fitting import robust
from odcsim.observed.run import Doing, RanStep
from odcsim.timeline import Floats, Ints

Rows = NDArray[np.bool_]  # which of a table


@dataclass(frozen=True, slots=True)
class ComputedTable:
    """A row for each microbatch. Of what is not known: 0."""

    steps: Ints  # places in SeenRun.steps
    ranks: Ints
    numbers: Ints
    seconds: Floats = field(repr=False)  # of compute
    walls: Floats = field(repr=False)
    tokens: Floats = field(repr=False)  # that are computed, padding included
    squares: Floats = field(repr=False)  # of the lengths that are computed
    held: Floats = field(repr=False)  # tokens of samples
    padding: Floats = field(repr=False)  # share of what is computed

    @property
    def lengths_known(self) -> bool:
        """Whether what a microbatch takes can be told from what it holds, long samples told from short ones."""
        return bool(len(self.squares)) and bool((self.squares > 0).all())

    def even(self, ranks: int, each: bool) -> Rows:
        """Those of rounds in which so many ranks hold the same: of each microbatch by its number, or of whole steps.
        There lengths keep nobody waiting."""
        numbers = self.numbers if each else np.zeros_like(self.numbers)
        _, rounds = np.unique(np.stack([self.steps, numbers]), axis=1, return_inverse=True)
        own, cells = np.unique(np.stack([rounds.ravel(), self.ranks]), axis=1, return_inverse=True)
        cells, alike = cells.ravel(), np.bincount(own[0], minlength=1) == ranks
        for contents in (self.tokens, self.squares):
            sums = np.bincount(cells, contents, own.shape[1])
            low, high = np.full(len(alike), np.inf), np.full(len(alike), -np.inf)
            np.minimum.at(low, own[0], sums)
            np.maximum.at(high, own[0], sums)
            alike &= low == high
        rows: Rows = alike[rounds.ravel()]
        return rows


def table_of(steps: Iterable[RanStep]) -> ComputedTable:
    rows = list[tuple[float, ...]]()
    for place, step in enumerate(steps):
        computed: dict[tuple[int, int], float] = {}  # as tracks say it
        for track in step.tracks:
            own = (track.kinds == Doing.COMPUTE) & (track.microbatches >= 0)
            sums = np.bincount(track.microbatches[own], np.diff(track.edges)[own])
            computed |= {(track.rank, m): float(seconds) for m, seconds in enumerate(sums)}
        for one in step.microbatches:
            took = one.seconds or computed.get((one.rank, one.number), 0.0)
            work, attended = float(max(one.computed, one.held)), float(sum(n * n for n in one.lengths))
            share = (work - one.held) / work if one.computed and one.held else 0.0
            if share:  # samples are all as long as the longest
                attended = float(one.computed) ** 2 / len(one.lengths) if one.lengths else 0.0
            rows.append((place, one.rank, one.number, took, one.wall, work, attended, one.held, share))
    columns = np.array(rows, dtype=np.float64).reshape(-1, 9).T
    places, ranks, numbers = columns[:3].astype(np.int64)
    seconds, walls, tokens, squares, held, padding = columns[3:]
    return ComputedTable(places, ranks, numbers, seconds, walls, tokens, squares, held, padding)


def expected(table: ComputedTable, seconds: Floats, rows: Rows) -> Floats | None:
    """Seconds of every microbatch by what it holds, fitted to `rows`. Nothing where they do not tell."""
    one, tokens, squares = np.ones(len(seconds)), table.tokens, table.squares
    tries = [(one, tokens, squares), (tokens, squares)] if table.lengths_known else []
    tries += [(one, tokens), (tokens,)] if (tokens > 0).all() else []
    if tries and rows.any() and not np.ptp(tokens) and not np.ptp(squares):
        return np.full(len(seconds), float(np.median(seconds[rows])))
    for columns in tries:
        stacked = np.stack(columns, axis=1)
        try:
            predicted: Floats = stacked @ robust.solve(stacked[rows], seconds[rows]).coefficients
        except InputError:
            continue
        if (predicted > 0).all():
            return predicted
    return None
