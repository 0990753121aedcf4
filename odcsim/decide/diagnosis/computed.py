"""What every microbatch of a run computed: its seconds, and what it held."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.fitting import robust
from odcsim.observed.run import Doing, RanMicrobatch, RanStep, Track
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
        for held in (self.tokens, self.squares):
            sums = np.bincount(cells, held, own.shape[1])
            low, high = np.full(len(alike), np.inf), np.full(len(alike), -np.inf)
            np.minimum.at(low, own[0], sums)
            np.maximum.at(high, own[0], sums)
            alike &= low == high
        found: Rows = alike[rounds.ravel()]
        return found


def table_of(steps: Iterable[RanStep]) -> ComputedTable:
    rows = [row for place, step in enumerate(steps) for row in _rows(place, step)]
    columns = np.array(rows, dtype=np.float64).reshape(-1, 9).T
    whole = columns[:3].astype(np.int64)
    return ComputedTable(*whole, *columns[3:])


def _rows(place: int, step: RanStep) -> Iterable[tuple[float, ...]]:
    ran = _in_tracks(step.tracks)
    for one in step.microbatches:
        seconds = one.seconds or ran.get((one.rank, one.number), 0.0)
        tokens = float(max(one.computed, one.held))
        padding = (tokens - one.held) / tokens if one.computed and one.held else 0.0
        yield place, one.rank, one.number, seconds, one.wall, tokens, _squares(one, padding), one.held, padding


def _squares(one: RanMicrobatch, padding: float) -> float:
    """Samples that are padded are all as long as the longest."""
    if padding:
        return float(one.computed) ** 2 / len(one.lengths) if one.lengths else 0.0
    return float(sum(n * n for n in one.lengths))


def _in_tracks(tracks: Iterable[Track]) -> dict[tuple[int, int], float]:
    """Compute of each microbatch (rank, number)."""
    found: dict[tuple[int, int], float] = {}
    for track in tracks:
        own = (track.kinds == Doing.COMPUTE) & (track.microbatches >= 0)
        sums = np.bincount(track.microbatches[own], np.diff(track.edges)[own])
        found |= {(track.rank, m): float(seconds) for m, seconds in enumerate(sums)}
    return found


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
            found: Floats = stacked @ robust.solve(stacked[rows], seconds[rows]).coefficients
        except InputError:
            continue
        if (found > 0).all():
            return found
    return None
