"""Least squares on the logarithm of seconds of published runs.

Each coefficient starts at what is known without any step (a prior, and how sure of it one can be), so that a publisher
who says nothing of it leaves it there. Many runs of one publisher on one family of GPUs weigh no more than a few: they
share their publisher's luck.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from published_cells import Cell
from published_coefficients import COEFFICIENTS, Fitted
from published_widths import spread

Floats = NDArray[np.float64]
FEW = 8  # runs of one publisher on one family that count in full
TAILS = 4  # the fewer, the less a run counts that is far off
ROUNDS, CLOSE = 12, 2e-3
ROUNDED = 2  # digits that the catalogue holds
STEP = 1e-4  # of a coefficient's logarithm, to see what it changes


def fit(cells: Sequence[Cell]) -> Fitted:
    """The coefficients that these runs decide, rounded as the catalogue holds them."""
    start, sure = (np.array([getattr(one, name) for one in COEFFICIENTS]) for name in ("prior", "sure"))
    usual, few = np.array([spread({}, cell) for cell in cells]), _few(cells)
    logs = np.zeros(len(start))
    for _ in range(ROUNDS):
        tried = _named(start * np.exp(logs))
        off = errors(tried, cells)
        weights = few * _trust(off / usual) / usual
        slopes = np.vstack([weights[:, None] * _slopes(tried, cells, off), np.diag(1 / sure)])
        step = np.linalg.lstsq(slopes, np.concatenate([-weights * off, -logs / sure]))[0]
        logs += step
        if np.abs(step).max() < CLOSE:
            break
    return _named(float(f"{value:.{ROUNDED}g}") for value in start * np.exp(logs))


def _few(cells: Sequence[Cell]) -> Floats:
    count = Counter((c.publisher, c.gpu.family) for c in cells)
    return np.array([min(1.0, FEW / count[c.publisher, c.gpu.family]) ** 0.5 for c in cells])


def _trust(off: Floats) -> Floats:
    """Least squares weighted by it are most likely where errors follow Student's t with TAILS degrees of freedom."""
    return np.sqrt((TAILS + 1) / (TAILS + off**2))


def _named(values: Iterable[float]) -> Fitted:
    return Fitted({one.name: float(value) for one, value in zip(COEFFICIENTS, values, strict=True)})


def errors(fitted: Fitted, cells: Sequence[Cell]) -> Floats:
    """Logarithms of predicted over published seconds."""
    return np.log([fitted.seconds(cell) / cell.seconds for cell in cells])


def _slopes(fitted: Fitted, cells: Sequence[Cell], here: Floats) -> Floats:
    """What each coefficient's logarithm changes of each run's, which is `here`, where it can change it at all."""
    found = np.zeros((len(cells), len(COEFFICIENTS)))
    for column, one in enumerate(COEFFICIENTS):
        touched = [row for row, cell in enumerate(cells) if one.touches(cell)]
        moved = fitted.but(one.name, fitted.values[one.name] * np.exp(STEP))
        found[touched, column] = (errors(moved, [cells[row] for row in touched]) - here[touched]) / STEP
    return found
