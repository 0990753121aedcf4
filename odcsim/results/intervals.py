"""Sampling error of a ratio of sums over minibatches.

A trace is a sample of what will be trained on, and minibatches drawn from it again and again share its samples: a
hundred passes over 300 samples say little more than one. So a minibatch's variance is split in two: that between
samples, which repeating the data does not reduce, and that of which samples meet, which it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcsim.timeline import Floats, Ints

POWERS = (1.0, 2.0, 0.5)  # of a sample's work, whose sums may explain a minibatch's deviation ...
BENDS = (0.8, 0.95, 0.99)  # ... and sums of what is over these quantiles: there a long sample begins to be waited for
EACH = 8  # minibatches for each sum, or nothing but chance is explained
UNKNOWN = 0.5  # the share of the variance that is between samples, where nothing tells
LENT = 3  # so many minibatches are thought to say that
FEWER = 0.7  # degrees of freedom of one minibatch: deviations have heavier tails than normal ones
LEAST = 2.8  # degrees of freedom, where there are more than three minibatches
LEVEL = 0.975  # of a speedup: 95 % lie between two such ends
RUN = 0.95  # of a run's seconds: 90 %


@dataclass(frozen=True, slots=True)
class Draws:
    """What an interval has to know of the minibatches."""

    distinct: int  # before their order starts over
    overlap: float  # share of its samples that a minibatch has in common with another one, on average
    lasting: float  # of the variance between samples, the part that is left in the mean
    sums: Floats  # over the samples' work [minibatch, sum]
    samples: int = 0  # of a minibatch

    def of_all(self, size: int) -> "Draws":
        """The same where so many samples are all that there is: what has been drawn of them is known."""
        return replace(self, lasting=max(0.0, self.lasting - self.samples / size))


def draws(ids: Sequence[Ints], work: Sequence[Floats], size: int, *, whole: bool = False) -> Draws:
    """`work` of the samples of each minibatch; `size` of the trace. `whole`: which is all that there is."""
    repeats = (n for n, minibatch in enumerate(ids[1:], 1) if np.array_equal(minibatch, ids[0]))
    distinct = next(repeats, len(ids)) if len(ids[0]) < size else len(ids)
    samples = len(ids[0])
    _, times = np.unique(np.concatenate(ids[:distinct]), return_counts=True)
    drawn = distinct * samples
    shared = float(times @ times) - drawn
    overlap = shared / (drawn * (distinct - 1)) if distinct > 1 else 0.0
    found = Draws(distinct, overlap, (shared + drawn) / (drawn * distinct), _sums(np.stack(work[:distinct])), samples)
    return found.of_all(size) if whole else found


def _sums(work: Floats) -> Floats:
    """Of powers of the samples' work, and of what is over its quantiles [minibatch, sum]."""
    over = (np.maximum(work - bend, 0.0) for bend in np.quantile(work, BENDS))
    return np.stack([*((work**power).sum(axis=1) for power in POWERS), *(part.sum(axis=1) for part in over)], axis=1)


def apart(minibatches: int) -> Draws:
    """No sample is in two of them."""
    return Draws(minibatches, 0.0, 1 / minibatches, np.zeros((minibatches, 1)))


def of_run(seconds: Floats, draws: Draws, low: float, high: float) -> tuple[float, float]:
    """90 % interval of a whole run's seconds, as factors: minibatches that were drawn stand for all of it, and the
    seconds themselves may be `low` to `high` times as long. The two are independent, so their squares add up.

    `draws` are those of all that the run trains on: an epoch has each of its samples once.
    """
    least, most = interval(seconds, np.full(len(seconds), seconds.mean()), draws, RUN)
    return 1 - min(1.0, float(np.hypot(1 - low, 1 - least))), 1 + float(np.hypot(high - 1, most - 1))


def interval(above: Floats, below: Floats, draws: Draws, level: float = LEVEL) -> tuple[float, float]:
    """Interval of sum(above) / sum(below), of the same minibatches: 95 %, unless the `level` of its upper end is
    another. One minibatch alone gives none but itself."""
    ratio, count = float(above.sum() / below.sum()), draws.distinct
    off = (above / above.mean() - below / below.mean())[:count]
    off = off - off.mean()
    spread = float(off @ off) / max(1, count - 1)
    if count < 2 or spread < 1e-24 or draws.overlap > 1 - 1e-9:
        return ratio, ratio
    single = _single(off, draws) * spread / (1 - draws.overlap)  # of the population: samples drawn once each vary less
    mixed = spread * (1 - _single(off, draws))
    left = mixed / count + single * draws.lasting
    alike = (single + mixed) / left if left else np.inf  # so many minibatches without a common sample tell as much
    low, high = _reach(off, spread, alike, count, level) * np.sqrt(left)
    return ratio * float(np.exp(-low)), ratio * float(np.exp(high))


def _single(off: Floats, draws: Draws) -> float:
    """The share of the deviations' variance that is between samples: explained by sums over the samples."""
    count = len(off)
    sums = draws.sums[:, : max(1, count // EACH)]
    sums = sums - sums.mean(axis=0)
    scale = sums.std(axis=0)
    base, _ = np.linalg.qr(sums[:, scale > 0] / scale[scale > 0])
    free = count - 1 - base.shape[1]
    if free <= 1 or not base.shape[1]:
        return UNKNOWN
    rest = off - base @ (base.T @ off)
    share = 1 - float(rest @ rest) / free * (count - 1) / float(off @ off)
    return (count * float(np.clip(share, 0, 1)) + LENT * UNKNOWN) / (count + LENT)


def _reach(off: Floats, spread: float, alike: float, count: int, level: float) -> Floats:
    """Standard errors to each side: Student's, and farther to the side of a long tail, whose end few draws have met."""
    from scipy.special import stdtrit

    freedom = min(count - 1, max(LEAST, FEWER * (alike - 1)))
    tail = float((off**3).mean()) / spread**1.5 / np.sqrt(max(2.0, alike))
    return np.array([1 + max(0.0, -tail), 1 + max(0.0, tail)]) * float(stdtrit(freedom, level))
