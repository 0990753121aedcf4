"""Whether two traces are alike: how far their lengths are apart, beside what chance alone makes of so many samples."""

from dataclasses import dataclass
from math import exp, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from odcsim.reading.stats import describe, quantiles, weights
from odcsim.trace import Trace

DOUBT = 0.05  # of calling two traces apart that are drawn from the same, by any of the figures
BEYOND = 3  # samples, or nobody knows a quantile
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}  # figures, beside the mean


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of both traces. `chance`: of two draws from the same, one has hardly more than so many times the other's."""

    this: float
    that: float
    chance: float

    @property
    def ratio(self) -> float:
        return self.this / self.that

    @property
    def apart(self) -> bool:
        return max(self.ratio, 1 / self.ratio) > self.chance


@dataclass(frozen=True, slots=True)
class Likeness:
    """`distance` is Kolmogorov's and Smirnov's: at no length do the shares of samples up to it differ by more."""

    figures: dict[str, Ratio]
    distance: float
    distance_by_chance: float

    @property
    def apart(self) -> list[str]:
        """What is further apart than chance makes it."""
        names = [name for name, figure in self.figures.items() if figure.apart]
        return [*names, *(["distance"] if self.distance > self.distance_by_chance else [])]


def likeness(this: Trace, that: Trace) -> Likeness:
    """Ratios are of this trace to that one. Chance is that of both being drawn from what they are together."""
    from scipy.special import kolmogi

    both = Trace("both", np.concatenate([this.lengths, that.lengths]), np.concatenate([weights(this), weights(that)]))
    doubt = DOUBT / (len(QUANTILES) + 2)  # shared by all that is looked at
    fewest, most = sorted((_draws(this), _draws(that)))
    off, reach = sqrt(1 / fewest + 1 / most), NormalDist().inv_cdf(1 - doubt / 2)
    figures = {"mean": Ratio(describe(this).mean, describe(that).mean, exp(min(reach * off * describe(both).cv, 700)))}
    for name, q in QUANTILES.items():
        if fewest * (1 - q) < BEYOND:
            continue
        rank = reach * off * sqrt(q * (1 - q))
        low, middle, high = quantiles(both, np.clip([q - rank, q, q + rank], 0, 1)).tolist()
        chance = max(high / middle, middle / low)
        figures[name] = Ratio(float(quantiles(this, q)), float(quantiles(that, q)), chance)
    return Likeness(figures, _distance(this, that), min(1.0, off * float(kolmogi(doubt))))


def _draws(trace: Trace) -> int:
    """So many of its samples say something of their own: those of one prompt may all be alike."""
    return describe(trace).groups or trace.size


def _distance(this: Trace, that: Trace) -> float:
    at = np.union1d(this.lengths, that.lengths)
    return float(np.abs(_upto(this, at) - _upto(that, at)).max())


def _upto(trace: Trace, at: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of samples that are no longer."""
    order = np.argsort(trace.lengths, kind="stable")
    upto = np.concatenate([[0], np.cumsum(weights(trace)[order])])
    return np.asarray(upto[np.searchsorted(trace.lengths[order], at, side="right")] / trace.size, np.float64)
