"""What a trace looks like in figures, weighted by its counts without expanding them; and whether two are alike: how far
their lengths are apart, beside what chance alone makes of so many samples."""

from dataclasses import dataclass
from math import exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from odcsim.trace import Trace

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
DOUBT = 0.05  # of calling two traces apart that are drawn from the same, by any of the figures
TAIL = 100  # one in so many samples
BEYOND = 3  # samples, or nobody knows a quantile
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}  # figures, beside the mean


@dataclass(frozen=True, slots=True)
class TraceStats:
    """`cv` is the coefficient of variation: standard deviation over mean; `tail` the tokens' share in the longest
    hundredth of samples, one at least. What a trace does not hold is None."""

    count: int
    tokens: int
    mean: float
    cv: float
    shortest: int
    longest: int
    percentiles: tuple[float, ...]
    tail: float
    loss_share: float | None
    steps: int | None
    groups: int | None


def describe(trace: Trace) -> TraceStats:
    weight = weights(trace)
    tokens, lengths = int(weight @ trace.lengths), trace.lengths.astype(np.float64)
    mean = tokens / trace.size
    spread = float(np.sqrt(weight @ (lengths - mean) ** 2 / trace.size))
    groups = None
    if trace.group is not None:  # a prompt drawn again in another step makes another group
        step = np.zeros_like(trace.group) if trace.step is None else trace.step
        groups = len(np.unique(np.stack([step, trace.group]), axis=1).T)
    return TraceStats(
        count=trace.size,
        tokens=tokens,
        mean=mean,
        cv=spread / mean,
        shortest=int(trace.lengths[weight > 0].min()),
        longest=trace.longest,
        percentiles=tuple(quantiles(trace, np.array(PERCENTILES) / 100).tolist()),
        tail=_longest(trace, tail(trace)) / tokens,
        loss_share=None if trace.loss is None else int(weight @ trace.loss) / tokens,
        steps=None if trace.step is None else len(np.unique(trace.step)),
        groups=groups,
    )


def quantiles(trace: Trace, q: ArrayLike) -> NDArray[np.float64]:
    """As numpy's default over every single sample: straight between the two nearest in order."""
    order = np.argsort(trace.lengths, kind="stable")
    ordered, upto = trace.lengths[order], np.cumsum(weights(trace)[order])
    at = np.asarray(q, np.float64) * (trace.size - 1)
    low = np.floor(at)
    below, above = (ordered[np.searchsorted(upto, side, side="right")] for side in (low, np.ceil(at)))
    return np.asarray(below + (above - below) * (at - low), np.float64)


def tail(trace: Trace) -> int:
    """How many samples are the longest hundredth."""
    return -(-trace.size // TAIL)


def _longest(trace: Trace, samples: int) -> int:
    """Tokens of so many samples, the longest."""
    order = np.argsort(trace.lengths, kind="stable")[::-1]
    weight = weights(trace)[order]
    left = np.maximum(samples - (np.cumsum(weight) - weight), 0)
    return int(np.minimum(weight, left) @ trace.lengths[order])


class Bands(NamedTuple):
    """Of lengths; the upper edge is the next one's."""

    edges: NDArray[np.int64]
    samples: NDArray[np.int64]
    tokens: NDArray[np.int64]


def histogram(trace: Trace, bins: int = 16) -> Bands:
    """Edges are each a constant factor above the last, and rounded."""
    weight = weights(trace)
    shortest = int(trace.lengths[weight > 0].min())
    edges = np.unique(np.rint(np.geomspace(shortest, trace.longest + 1, bins + 1)).astype(np.int64))
    order = np.argsort(trace.lengths, kind="stable")
    at = np.searchsorted(trace.lengths[order], edges)
    samples, tokens = (np.concatenate(([0], np.cumsum(of[order])))[at] for of in (weight, weight * trace.lengths))
    return Bands(edges, np.diff(samples), np.diff(tokens))


def weights(trace: Trace) -> NDArray[np.int64]:
    return np.ones(len(trace.lengths), np.int64) if trace.counts is None else trace.counts


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
    mine, other, together = describe(this), describe(that), describe(both)
    doubt = DOUBT / (len(QUANTILES) + 2)  # shared by all that is looked at
    # So many samples say something of their own: those of one prompt may all be alike.
    fewest, most = sorted((mine.groups or this.size, other.groups or that.size))
    off, reach = sqrt(1 / fewest + 1 / most), NormalDist().inv_cdf(1 - doubt / 2)
    figures = {"mean": Ratio(mine.mean, other.mean, exp(min(reach * off * together.cv, 700)))}
    for name, q in QUANTILES.items():
        if fewest * (1 - q) < BEYOND:
            continue
        rank = reach * off * sqrt(q * (1 - q))
        low, middle, high = quantiles(both, np.clip([q - rank, q, q + rank], 0, 1)).tolist()
        chance = max(high / middle, middle / low)
        figures[name] = Ratio(float(quantiles(this, q)), float(quantiles(that, q)), chance)
    at = np.union1d(this.lengths, that.lengths)
    distance = float(np.abs(_share_upto(this, at) - _share_upto(that, at)).max())
    return Likeness(figures, distance, min(1.0, off * float(kolmogi(doubt))))


def _share_upto(trace: Trace, at: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of samples that are no longer."""
    order = np.argsort(trace.lengths, kind="stable")
    upto = np.concatenate([[0], np.cumsum(weights(trace)[order])])
    return np.asarray(upto[np.searchsorted(trace.lengths[order], at, side="right")] / trace.size, np.float64)
