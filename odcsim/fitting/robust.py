"""Fits that a few bad measurements cannot move far, with coefficients that are never negative.

Errors are relative, so that a short call counts as much as a long one. Huber's weights, found by repeated solving of
non-negative least squares, bound what any single measurement can do.
"""

import math
from dataclasses import dataclass

import numpy as np

from odcsim.errors import InputError
from odcsim.timeline import Floats

HUBER = 1.345  # in standard deviations: 95 % as exact as least squares where errors are normal
MAD = 1.4826  # median absolute deviation to standard deviation, of normal errors
FLOOR = 1e-6  # of the spread: without noise, rounding
EXACT = 1e-3  # no timing is better, whatever a few that agree say
MOST_CONDITION = 1000.0  # beyond it, noise of 1 % moves a coefficient by many times itself
ROUNDS = 100
MOST_STRETCHED = 2.0
TINY = 1e-150  # of a column: what is less, or its square, no float64 holds
ALIKE = "the measurements do not tell the coefficients apart"


@dataclass(frozen=True, slots=True)
class Solution:
    """Seconds = columns @ coefficients. `residuals` are relative: predicted over measured, minus one."""

    coefficients: Floats
    errors: Floats  # standard errors of the coefficients
    residuals: Floats
    spread: float  # standard deviation of the residuals, bad ones aside


def solve(columns: Floats, seconds: Floats) -> Solution:
    """Raises where the columns do not vary independently of each other: then no fit can tell them apart."""
    relative = columns / seconds[:, None]
    if len(seconds) <= columns.shape[1] or not distinct(relative):
        raise InputError(ALIKE)
    sizes = np.linalg.norm(relative, axis=0)
    scaled = columns / sizes
    try:
        best, fitted, residuals, weights, spread = _reweighted(scaled, seconds)
        base = np.maximum(fitted, seconds)
        # From the Jacobian, after Huber: bad measurements count for the share that their weights leave them.
        jacobian, inside = scaled / base[:, None], max(float((weights >= 1).mean()), 0.5)
        variance = float(((weights * residuals) ** 2).sum()) / (len(residuals) - scaled.shape[1]) / inside**2
        errors = np.sqrt(variance * np.diag(np.linalg.inv(jacobian.T @ jacobian))) / sizes
    except (np.linalg.LinAlgError, RuntimeError):  # few that are nearly alike, which rounding decides about
        raise InputError(ALIKE) from None
    return Solution(best / sizes, errors, fitted / seconds - 1, spread)


def solve_near(columns: Floats, seconds: Floats, near: Floats, within: Floats) -> Floats:
    """Coefficients that stay near `near`, give or take `within`, as far as the measurements do not say otherwise.

    Never raises: what the measurements cannot tell apart keeps the proportions that it had before.
    """
    sizes = 1 / within
    pull = (np.eye(len(near)), near * sizes)
    coefficients: Floats = _reweighted(columns / sizes, seconds, pull)[0] / sizes
    return coefficients


def _reweighted(
    scaled: Floats, seconds: Floats, pull: tuple[Floats, Floats] | None = None
) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Non-negative coefficients, fitted seconds, residuals, Huber's weights and spread.

    The rows of `pull` (columns and values) weigh as much as a measurement that is off by the spread.
    """
    from scipy.optimize import nnls

    base, weights, spread = seconds, np.ones(len(seconds)), 1.0
    best: Floats = np.zeros(scaled.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights) / base
        rows, values = scaled * root[:, None], seconds * root
        if pull is not None:
            strength = max(spread, EXACT)
            rows, values = np.vstack([rows, strength * pull[0]]), np.append(values, strength * pull[1])
        coefficients = nnls(rows, values)[0]
        fitted = scaled @ coefficients
        # Relative to the longer of the two, so that neither a far too short call nor a far too long one gains by it.
        base = np.maximum(fitted, seconds)
        residuals = (fitted - seconds) / base
        size = np.abs(residuals)
        spread = max(MAD * float(np.median(size)), FLOOR)
        weights = np.minimum(1.0, HUBER * spread / np.maximum(size, FLOOR * FLOOR))
        done, best = np.allclose(coefficients, best, rtol=1e-8, atol=0), coefficients
        if done:
            break
    return best, fitted, residuals, weights, spread


def stretch(groups: Floats, seconds: Floats) -> float:
    """The mean of repeats over their median, where no single interruption counts for more than twice the median.

    What adds up over many steps is their mean. Interruptions only ever lengthen a step, so a fit that they cannot move
    is too short by what they cost on average.
    """
    _, places = np.unique(groups, axis=0, return_inverse=True)
    places = places.ravel()
    medians = np.array([np.median(seconds[places == i]) for i in range(places.max() + 1)])
    return float(np.minimum(seconds / medians[places], MOST_STRETCHED).mean())


def distinct(columns: Floats) -> bool:
    """Whether no column is nearly a sum of the others."""
    with np.errstate(over="ignore", under="ignore"):
        sizes = np.linalg.norm(columns, axis=0)
        if not bool(((sizes > TINY) & (sizes < 1 / TINY)).all()):
            return False
        return bool(np.linalg.cond(columns / sizes) <= MOST_CONDITION)


def jitter(groups: Floats, seconds: Floats) -> float:
    """Standard deviation between repeats of one measurement, as a fraction; 0 where nothing was repeated.

    From the median gap between two repeats, so that one interrupted call does not count as noise.
    """
    _, places = np.unique(groups, axis=0, return_inverse=True)
    logs, places = np.log(seconds), places.ravel()
    alike = np.triu(places[:, None] == places, 1)
    gaps = np.abs(logs[:, None] - logs)[alike]
    return MAD / math.sqrt(2) * float(np.median(gaps)) if gaps.size else 0.0
