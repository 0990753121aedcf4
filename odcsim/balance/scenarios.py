"""What samples weigh if the cost model is wrong."""

import numpy as np
from numpy.typing import NDArray

from odcsim.balance.partition import lower_bound

Floats = NDArray[np.float64]

# Of the quadratic part of a sample's cost. A load is a straight line in such a factor: where it is as even as can be at
# both ends it is so between them, but for a kink where the longest sample takes over from the mean as lower bound.
FACTORS = (0.8, 1.25)


def scenarios(linear: Floats, quadratic: Floats) -> Floats:
    """Weights [scenario, sample] from the two parts of each sample's seconds."""
    weights: Floats = linear + np.array(FACTORS)[:, None] * quadratic
    return weights


def guessed(weights: Floats, lengths: NDArray[np.int64]) -> Floats:
    """Weights [scenario, sample] from sums alone: the quadratic part is what fits them best as a s + b s^2.

    Weights that grow no faster than lengths have no such part, and all scenarios are alike.
    """
    x = lengths / lengths.max()
    squares, cubes, fourths = (float((x**power).sum()) for power in (2, 3, 4))
    once, twice = float((x * weights).sum()), float((x**2 * weights).sum())
    determinant = squares * fourths - cubes**2
    slope = (squares * twice - cubes * once) / determinant if determinant > 1e-9 * cubes**2 else 0.0
    quadratic = np.clip(slope * x**2, 0.0, weights)
    return scenarios(weights - quadratic, quadratic)


def in_bounds(weights: Floats, devices: int) -> Floats:
    """Weights [scenario, sample] in units of each scenario's lower bound."""
    bounds = np.array([[lower_bound(row, devices) or 1.0] for row in weights])
    scaled: Floats = weights / bounds
    return scaled
