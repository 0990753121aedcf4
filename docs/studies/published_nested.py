"""What published runs decide, and what they decide of a publisher whom nothing was learnt from.

Coefficients and widths both: those of a publisher left out come from all others, each of whom is left out in turn once
more to see how far predictions are off.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from published_cells import Cell
from published_coefficients import Fitted
from published_fit import errors, fit
from published_widths import learnt

from odcsim.catalog.estimates.rates import Spread


@dataclass(frozen=True, slots=True)
class Learnt:
    """Coefficients, and how far predictions by them are off by kind of run."""

    fitted: Fitted
    spreads: dict[str, Spread]


@dataclass(frozen=True, slots=True)
class Nested:
    """Fits to runs of which their source says all, by who is left out."""

    cells: Sequence[Cell]
    fits: dict[frozenset[str], Fitted] = field(default_factory=dict)

    def without(self, *publishers: str) -> Learnt:
        """What all others decide."""
        cells = self._others(publishers)
        off = np.zeros(len(cells))
        for name in {cell.publisher for cell in cells}:
            here = [row for row, cell in enumerate(cells) if cell.publisher == name]
            off[here] = errors(self._fit((*publishers, name)), [cells[row] for row in here])
        return Learnt(self._fit(publishers), learnt(cells, off))

    def _others(self, publishers: Iterable[str]) -> list[Cell]:
        return [cell for cell in self.cells if cell.stated and cell.publisher not in publishers]

    def _fit(self, publishers: Iterable[str]) -> Fitted:
        key = frozenset(publishers)
        if key not in self.fits:
            self.fits[key] = fit(self._others(key))
        return self.fits[key]
