"""Sampling error of a ratio of sums over minibatches.

A trace is a sample of what will be trained on, and minibatches drawn from it again and again share its samples: a
hundred passes over 300 samples say little more than one. So a minibatch's variance is split in two: that between
samples, which repeating the data does not reduce, and that of which samples meet, which it does.

How often intervals hold is measured by `docs/studies/coverage.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcsim.timeline import Floats, Ints

POWERS = (1.0, 2.0, 0.5)  # of a sample's work, whose sums may explain a minibatch's deviation ...
BENDS = (0.8, 0.95, 0.99)  # ... and sums of what is over these quantiles: there a long sample begins to be waited for
EVEN = 0.5  # the share of the variance that is between samples, where nothing tells: the middle of what it may be
KURTOSIS = 5.0  # of deviations, at least: few minibatches show less than they have
FAR = 2.0  # times as far off as the farthest that was met is nothing's mean
FARTHEST = 0.03  # as far off as this, at least, may be a minibatch that was not met
LEVEL = 0.975  # of a speedup: 95 % lie between two such ends
RUN = 0.95  # of a run's seconds: 90 %


@dataclass(frozen=True, slots=True)
class Draws:
    """What an interval has to know of the minibatches."""

    distinct: int  # before their order starts over
    overlap: float  # share of its samples that a minibatch has in common with another one, or that are like them
    lasting: float  # of the variance between samples, the part that is left in the mean
    sums: Floats  # over the samples' work [minibatch, sum]
    samples: int = 0  # of a minibatch
    size: int = 1  # of the trace
    singly: float = 0.0  # what would be left if no sample were like another

    def of_all(self, size: int) -> "Draws":
        """The same where so many samples are all that there is, of which the trace is a part: what has been drawn of
        them is known. Likeness still counts for those that are not in the trace."""
        outside = max(0.0, 1 - self.size / size)
        common = (self.singly * self.distinct - 1) / max(1, self.distinct - 1)
        left = max(0.0, self.singly - self.samples / size)
        return replace(
            self,
            lasting=left + outside * (self.lasting - self.singly),
            overlap=common + outside * (self.overlap - common),
        )


def draws(
    ids: Sequence[Ints], work: Sequence[Floats], size: int, *, kin: Sequence[Ints] | None = None, whole: bool = False
) -> Draws:
    """`work` of the samples of each minibatch; `size` of the trace. `kin`: which prompt each is of, where samples of
    one are alike. `whole`: the trace is all that there is. Minibatches of unlike sizes were recorded: each sample
    is in one of them."""
    if len({len(minibatch) for minibatch in ids}) > 1:
        return apart(len(ids))
    repeats = (n for n, minibatch in enumerate(ids[1:], 1) if np.array_equal(minibatch, ids[0]))
    distinct = next(repeats, len(ids)) if len(ids[0]) < size else len(ids)
    held, loads = np.stack(ids[:distinct]), np.stack(work[:distinct])
    inside, every = _pairs(held)
    singly = every / (inside * distinct)
    if kin is not None:
        prompts = np.stack(kin[:distinct])
        like = _likeness(held.ravel(), prompts.ravel(), loads.ravel())
        inside, every = ((1 - like) * np.array((inside, every)) + like * np.array(_pairs(prompts))).tolist()
    overlap = (every - inside) / (inside * (distinct - 1)) if distinct > 1 else 0.0
    found = Draws(distinct, overlap, every / (inside * distinct), _sums(loads), held.shape[1], size, singly)
    return found.of_all(size) if whole else found


def _pairs(labels: Ints) -> tuple[float, float]:
    """How many pairs of draws have the same label [minibatch, draw], each with itself among them: of one minibatch, and
    of all."""
    each = labels + (labels.max() + 1) * np.arange(len(labels))[:, None]
    (_, inside), (_, every) = (np.unique(of, return_counts=True) for of in (each, labels))
    return float(inside @ inside), float(every @ every)


def _likeness(held: Ints, prompts: Ints, work: Floats) -> float:
    """How alike the work of samples of one prompt is: the intraclass correlation, by an analysis of variance."""
    _, first = np.unique(held, return_index=True)
    _, places, sizes = np.unique(prompts[first], return_inverse=True, return_counts=True)
    own, count, groups = work[first], len(first), len(sizes)
    if not 1 < groups < count:
        return 0.0
    means = np.bincount(places, own) / sizes
    within = float(((own - means[places]) ** 2).sum()) / (count - groups)
    between = float((sizes * (means - own.mean()) ** 2).sum()) / (groups - 1)
    each = (count - float(sizes @ sizes) / count) / (groups - 1)  # samples of a prompt, as unlike sizes count
    variance = (between - within) / each
    return float(np.clip(variance / (variance + within), 0, 1)) if variance + within > 0 else 0.0


def _sums(work: Floats) -> Floats:
    """Of powers of the samples' work, and of what is over its quantiles [minibatch, sum]."""
    over = (np.maximum(work - bend, 0.0) for bend in np.quantile(work, BENDS))
    return np.stack([*((work**power).sum(axis=1) for power in POWERS), *(part.sum(axis=1) for part in over)], axis=1)


def apart(minibatches: int) -> Draws:
    """No sample is in two of them."""
    return Draws(minibatches, 0.0, 1 / minibatches, np.zeros((minibatches, 1)), singly=1 / minibatches)


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
    if count < 2 or draws.overlap > 1 - 1e-9:
        return ratio, ratio
    share = _single(off, draws)
    single = share / (1 - draws.overlap)  # of the population: samples drawn once each vary less
    left = single * draws.lasting + (1 - share) / count
    if not left:
        return ratio, ratio
    alike = (single + 1 - share) / left  # so many minibatches without a common sample tell as much
    variance = (single + 1 - share) * float(off @ off) / (count - 1)
    low, high = (min(_reach(off, e, variance, alike, level), FAR * max(e, FARTHEST)) for e in (-off.min(), off.max()))
    return ratio * float(np.exp(-low)), ratio * float(np.exp(high))


def _single(off: Floats, draws: Draws) -> float:
    """The share of the deviations' variance that is between samples: explained by sums over the samples. Each sum takes
    a minibatch from what they tell."""
    count, total = len(off), float(off @ off)
    sums = draws.sums[:, : math.isqrt(count)]
    sums = sums - sums.mean(axis=0)
    scale = sums.std(axis=0)
    base = np.linalg.qr(sums[:, scale > 0] / scale[scale > 0])[0]
    free = count - 1 - base.shape[1]
    if free <= 1 or not base.shape[1] or not total:
        return EVEN
    rest = off - base @ (base.T @ off)
    share = 1 - float(rest @ rest) / free * (count - 1) / total
    return float((free * np.clip(share, 0, 1) + base.shape[1] * EVEN) / (free + base.shape[1]))


def _reach(off: Floats, edge: float, variance: float, alike: float, level: float) -> float:
    """How far the mean may be to one side, if the next minibatch is as far off to that side as the farthest was.

    Student's, and with fewer degrees of freedom the heavier the tails are.
    """
    from scipy.special import stdtrit

    edge = max(edge, FARTHEST)
    spread = (variance * (alike - 1) + edge**2 * alike / (alike + 1)) / alike
    return edge / (alike + 1) + float(stdtrit(_freedom(off, alike), level)) * math.sqrt(spread / (alike + 1))


def _freedom(off: Floats, alike: float) -> float:
    """Degrees that a variance has by the kurtosis of its deviations, which is at most their number: two at least."""
    squares = off**2
    kurtosis = float((squares**2).mean() / squares.mean() ** 2) if squares.any() else 0.0
    found = 2 * alike / (max(kurtosis, KURTOSIS) - 1)
    return min(len(off) - 1.0, max(2.0, found))
