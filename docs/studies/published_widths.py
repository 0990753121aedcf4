"""How far predictions are off by kind of run, learnt from runs whose publisher had no part in their prediction.

The error of a run is the sum of one error for each of its kinds (odcsim/catalog/estimates/rates.py). Each kind's
variance is a mean over the publishers who have it, and over as many that are off by its start as that weighs. A
publisher's runs count as one, however many they are. Since errors have longer tails than a normal curve, and few are
in them, all widths are then scaled so that 90 % of these runs are inside, averaged over sources.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from published_cells import Cell

from odcsim.catalog.estimates.rates import FAMILY, INTERVAL, STARTS, WEIGHS, Spread, kinds, together, widen

Floats = NDArray[np.float64]
ROUNDS = 200  # of which each takes what was found for granted, to part errors between kinds
ROUNDED = 2  # digits that the catalogue holds


def kinds_of(cell: Cell) -> list[str]:
    return kinds(cell.gpu.family, cell.model, cell.recipe)


def learnt(cells: Sequence[Cell], errors: Floats) -> dict[str, Spread]:
    """`errors`: logarithms of predicted over published seconds, each without its publisher."""
    each = [kinds_of(cell) for cell in cells]
    named = sorted({kind for own in each for kind in own})
    of = np.array([[kind in own for kind in named] for own in each], float).reshape(len(cells), len(named))
    shares, publishers = _shares(cells, of)
    starts = np.array([STARTS.get(kind, FAMILY) for kind in named]) ** 2
    variances = starts
    for _ in range(ROUNDS):
        whole = of @ variances
        squares = variances + np.outer((errors**2 - whole) / whole**2, variances**2)
        variances = (WEIGHS * starts + (shares * squares).sum(axis=0)) / (WEIGHS + publishers)
    widths = np.sqrt(of @ (variances * np.square([widen(Spread(1.0, int(count))) for count in publishers])))
    scale = _scale(np.abs(errors) / (INTERVAL * widths), cells)
    deviations = (float(f"{value:.{ROUNDED}g}") for value in scale * np.sqrt(variances))
    return {kind: Spread(off, int(count)) for kind, off, count in zip(named, deviations, publishers, strict=True)}


def _scale(sizes: Floats, cells: Sequence[Cell]) -> float:
    """What 90 % of runs are below where one source's count as one, and as many more of 1 as a start weighs."""
    if not cells:
        return 1.0
    count, order = Counter(cell.source for cell in cells), np.argsort(sizes)
    weights = np.array([1 / count[cells[row].source] for row in order])
    found = sizes[order[np.searchsorted(weights.cumsum(), 0.9 * len(count) - 1e-9)]]
    return float(np.sqrt((WEIGHS + len(count) * found**2) / (WEIGHS + len(count))))


def _shares(cells: Sequence[Cell], of: Floats) -> tuple[Floats, Floats]:
    """What each run counts of each kind, a publisher's runs together as one; and how many publishers have it."""
    names = sorted({cell.publisher for cell in cells})
    own = np.array([[cell.publisher == name for name in names] for cell in cells], float).reshape(
        len(cells), len(names)
    )
    counts = own.T @ of
    return of / np.maximum(1, own @ counts), np.count_nonzero(counts, axis=0)


def spread(spreads: Mapping[str, Spread], cell: Cell) -> float:
    """Of the logarithm of one run's seconds."""
    return together(spreads, kinds_of(cell))
