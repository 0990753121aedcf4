"""Sampling error of a ratio of sums over minibatches.

A trace is a sample of what will be trained on, and minibatches drawn from it again and again share its samples: a
hundred passes over 300 samples say little more than one. So a minibatch's variance is split in two: that between
samples, which repeating the data does not reduce, and that of which samples meet, which it does.

Samples that are alike tell less: answers to one prompt, or neighbours in a file that was written group by group. Their
pairs count as that share of a sample that was drawn again, and the file as so many fewer.

How often intervals hold is measured by `docs/studies/coverage.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from odcsim.timeline import Floats, Ints

POWERS = (1.0, 2.0, 0.5)  # of a sample's work, whose sums may explain a minibatch's deviation ...
BENDS = (0.8, 0.95, 0.99)  # ... and sums of what is over these quantiles: there a long sample begins to be waited for
EVEN = 0.5  # the share of the variance that is between samples, where nothing tells: the middle of what it may be
KURTOSIS = 5.0  # of deviations, at least: few minibatches show less than they have
NORMAL = 3.0  # the kurtosis up to which no sample is so far off that few of its kind were met
FAR = 2.0  # times as far off as the farthest that was met is nothing's mean
FARTHEST = 0.03  # as far off as this, at least, may be a minibatch that was not met
LEVEL = 0.975  # of a speedup: 95 % lie between two such ends
RUN = 0.95  # of a run's seconds: 90 %
CLEAR = 3.5  # standard errors from which on neighbours are alike by no chance
SHORT = 1.5  # standard errors, below which likeness ends
RUNS = 20  # as many must a file have, at least, of runs that are found in it
REACH = 128  # samples of a run, at most
LOOKED_AT = 1 << 15  # samples of a file, for runs


@dataclass(frozen=True, slots=True)
class Draws:
    """What an interval has to know of the minibatches.

    Pairs of draws are told apart by what they have in common: the sample itself; then the prompt or, where neighbours
    are alike, being 1, 2, ... apart in the file.
    """

    distinct: int  # minibatches, before their order starts over
    inside: Floats  # pairs of one minibatch, of each kind
    every: Floats  # pairs of all
    sums: Floats  # over the samples' work [minibatch, sum]
    samples: int = 0  # of a minibatch
    size: int = 1  # of the trace
    like: Floats = field(default_factory=lambda: np.ones(1))  # how alike samples of each kind of pair are by their work
    of: float = math.inf  # samples that there are, of which the trace is a part
    terms: Floats = field(default_factory=lambda: np.zeros((0, 1)), repr=False)  # what is summed, of each sample ...
    prompts: Ints | None = field(default=None, repr=False)  # ... and its prompt; None: they are in the file's order
    alike: float | None = None  # how much siblings are, where nobody knows which they are

    def of_all(self, size: int) -> "Draws":
        """The same where so many samples are all that there is: what has been drawn of them is known."""
        return replace(self, of=size)

    @property
    def overlap(self) -> float:
        """Share of its samples that a minibatch has in common with another one, or that are like them."""
        return self.common(self.like)[0]

    @property
    def lasting(self) -> float:
        """Of the variance between samples, the part that is left in the mean."""
        return self.common(self.like)[1]

    def likeness(self, values: Floats) -> Floats:
        """How alike such values of samples are, of each kind of pair."""
        apart = len(self.inside) - 1
        if not apart:
            return np.ones(1)
        if self.alike is not None:
            return np.array([1.0, self.alike])
        if self.prompts is not None:
            return np.array([1.0, intraclass(values, self.prompts)])
        return np.append(1.0, np.clip(_correlations(values, _most(len(values)))[0][:apart], 0, 1))

    def common(self, like: Floats) -> tuple[float, float]:
        """Overlap and what is lasting, where pairs are so much alike. Likeness counts for those that are not in the
        trace."""
        shared, lasting = self._of_trace(like)
        if self.of == math.inf:
            return shared, lasting
        outside = max(0.0, 1 - self.size / self.of)
        same, singly = self._of_trace(np.eye(1, len(like))[0])
        left = max(0.0, singly - self.samples / self.of)
        return same + outside * (shared - same), left + outside * (lasting - singly)

    def _of_trace(self, like: Floats) -> tuple[float, float]:
        inside, every = float(self.inside @ like), float(self.every @ like)
        between = (every - inside) / (inside * (self.distinct - 1)) if self.distinct > 1 else 0.0
        return between, every / (inside * self.distinct)


def draws(
    ids: Sequence[Ints],
    work: Sequence[Floats],
    size: int,
    *,
    kin: Sequence[Ints] | None = None,
    file: Floats | None = None,
    siblings: tuple[int, float] = (1, 0.0),
    whole: bool = False,
) -> Draws:
    """`work` of the samples of each minibatch; `size` of the trace. `kin`: which prompt each is of, where samples of
    one are alike. `file`: the work of samples in its order, where it has one and no prompts are known. `siblings`: how
    many are of one prompt and how alike, where nobody knows which. `whole`: the trace is all that there is. Minibatches
    of unlike sizes were recorded: each sample is in one of them."""
    if len({len(minibatch) for minibatch in ids}) > 1:
        return apart(len(ids))
    repeats = (n for n, minibatch in enumerate(ids[1:], 1) if np.array_equal(minibatch, ids[0]))
    distinct = next(repeats, len(ids)) if len(ids[0]) < size else len(ids)
    held, loads = np.stack(ids[:distinct]), np.stack(work[:distinct])
    bends = np.quantile(loads, BENDS)
    pairs, of, prompts = [_pairs(held)], np.zeros(0), None
    if kin is not None:
        each = np.stack(kin[:distinct])
        pairs.append(tuple(np.subtract(_pairs(each), pairs[0])))
        first = np.unique(held, return_index=True)[1]
        of, prompts = loads.ravel()[first], each.ravel()[first]
    elif siblings[0] > 1 and size > 1:  # as many pairs of them as there are by chance
        inside, every = pairs[0]
        among = (siblings[0] - 1) / (size - 1)
        pairs.append((among * (distinct * held.shape[1] ** 2 - inside), among * (held.size**2 - every)))
    elif file is not None and (reach := _reach_of(file[:LOOKED_AT])):
        of = file[:LOOKED_AT]
        pairs += _beside(held, reach)
    inside, every = np.array(pairs, dtype=np.float64).T
    sums = _terms(loads, bends).sum(axis=1)
    found = Draws(distinct, inside, every, sums, held.shape[1], size, terms=_terms(of, bends), prompts=prompts)
    found = replace(found, alike=siblings[1]) if siblings[0] > 1 and kin is None else found
    found = replace(found, like=found.likeness(of))
    return found.of_all(size) if whole else found


def _pairs(labels: Ints) -> tuple[float, float]:
    """How many pairs of draws have the same label [minibatch, draw], each with itself among them: of one minibatch, and
    of all."""
    each = labels + (labels.max() + 1) * np.arange(len(labels))[:, None]
    (_, inside), (_, every) = (np.unique(of, return_counts=True) for of in (each, labels))
    return float(inside @ inside), float(every @ every)


def _beside(held: Ints, reach: int) -> list[tuple[float, float]]:
    """How many pairs of draws are 1, 2, ... apart in the file: of one minibatch, and of all."""
    each = held + (int(held.max()) + 1 + reach) * np.arange(len(held))[:, None]
    (one, times), (own, counts) = (np.unique(of, return_counts=True) for of in (held, each))
    return [(_at(own, counts, gap), _at(one, times, gap)) for gap in range(1, reach + 1)]


def _at(known: Ints, times: Ints, gap: int) -> float:
    place = np.minimum(np.searchsorted(known, known + gap), len(known) - 1)
    return 2 * float(times @ np.where(known[place] == known + gap, times[place], 0))


def intraclass(values: Floats, prompts: Ints) -> float:
    """How alike values of one prompt are: the intraclass correlation, by an analysis of variance."""
    _, places, sizes = np.unique(prompts, return_inverse=True, return_counts=True)
    count, groups = len(values), len(sizes)
    if not 1 < groups < count:
        return 0.0
    means = np.bincount(places, values) / sizes
    within = float(((values - means[places]) ** 2).sum()) / (count - groups)
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (groups - 1)
    each = (count - float(sizes @ sizes) / count) / (groups - 1)  # samples of a prompt, as unlike sizes count
    variance = (between - within) / each
    return float(np.clip(variance / (variance + within), 0, 1)) if variance + within > 0 else 0.0


def _reach_of(work: Floats) -> int:
    """Up to how many places on a sample of a file is like its neighbours, beyond those that are farther apart; 0, where
    that may be chance, or where the whole file is in some order. By ranks, which a few long samples do not sway."""
    most = _most(len(work))
    if most < 2 or not work.std():
        return 0
    _, places, times = np.unique(work, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(times) - times / 2)[places]  # the middle of those that are alike
    near, distant = _correlations(ranks, most)
    clear = np.cumsum(near) * np.sqrt(len(work) / np.arange(1, most + 1))
    if clear.max() < CLEAR or distant > near[0]:
        return 0
    before = np.cumsum(np.append(0.5, near[:-1] ** 2)) * 2  # by Bartlett: so many times as far as if none were alike
    small = np.flatnonzero(near < SHORT * np.sqrt(before / len(work)))
    return int(small[0]) if len(small) else most


def _most(count: int) -> int:
    return min(REACH, count // RUNS)


def _correlations(values: Floats, most: int) -> tuple[Floats, float]:
    """Of values with those 1 to `most` places on, less that of those up to twice as far; and the latter. By squares of
    differences, which a trend through the file hardly adds to."""
    values, count, gaps = values - values.mean(), len(values), np.arange(1, 2 * most + 1)
    waves = np.fft.rfft(values, 1 << (count + 2 * most - 1).bit_length())
    products = np.fft.irfft(waves * waves.conj())[gaps]
    squares = np.append(0.0, np.cumsum(values**2))
    off = (squares[count - gaps] + squares[-1] - squares[gaps] - 2 * products) / (count - gaps)
    found = 1 - off / (2 * squares[-1] / count or 1.0)
    distant = float(found[most:].mean())
    return found[:most] - distant, distant


def _terms(work: Floats, bends: Floats) -> Floats:
    """Powers of samples' work, and what is over its quantiles, along a last axis."""
    return np.stack([*(work**power for power in POWERS), *(np.maximum(work - bend, 0.0) for bend in bends)], axis=-1)


def apart(minibatches: int) -> Draws:
    """No sample is in two of them."""
    return Draws(minibatches, np.array([minibatches]), np.array([minibatches]), np.zeros((minibatches, 1)))


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
    share, like = _single(off, draws)
    overlap, lasting = draws.common(like)
    if count < 2 or overlap > 1 - 1e-9:
        return ratio, ratio
    single = share / (1 - overlap)  # of the population: samples drawn once each vary less
    left = single * lasting + (1 - share) / count
    if not left:
        return ratio, ratio
    alike = (single + 1 - share) / left  # so many minibatches without a common sample tell as much
    variance = (single + 1 - share) * float(off @ off) / (count - 1)
    met, fewest = _met(share, like, draws, alike)
    least = FARTHEST / (fewest + 1)
    beyond = 1 / (met + 1) - 1 / (alike + 1)  # as large a share of the minibatches is farther off than of fewer any is
    freedom, reach = _freedom(off, met), []
    for side in (-off, off):
        edge = max(float(np.quantile(side, 1 - beyond)), FARTHEST)
        found = _reach(max(edge / (met + 1), least), variance, alike, freedom, level)
        reach.append(min(found, FAR * max(float(side.max()), FARTHEST)))
    return ratio * float(np.exp(-reach[0])), ratio * float(np.exp(reach[1]))


def _met(share: float, like: Floats, draws: Draws, alike: float) -> tuple[float, float]:
    """How many minibatches have been met, for what was not. Where few prompts have the long samples, as the kurtosis of
    work tells, a file has fewer kinds of them than its mean is known by: by what tells in the deviations; and by work,
    where hardly anything told yet."""
    heavy = float(np.clip((_kurtosis(draws.terms[:, 0]) - NORMAL) / (KURTOSIS - NORMAL), 0, 1))
    same, singly = draws.common(np.eye(1, len(like))[0])
    if len(like) == 1 or not singly or not heavy:
        return alike, alike
    (told, lasting), (of_work, left) = draws.common(like), draws.common(draws.like)
    single = share / (1 - same)
    alone = (single + 1 - share) / (single * singly + (1 - share) / draws.distinct)
    kinds = min(alike, alone * (1 - told) / lasting * singly / (1 - same))
    fewest = min(kinds, (1 - of_work) / left)
    return float(alike * (kinds / alike) ** heavy), float(alike * (fewest / alike) ** heavy)


def _kurtosis(off: Floats) -> float:
    squares = (off - off.mean()) ** 2 if len(off) else off
    return float((squares**2).mean() / squares.mean() ** 2) if squares.any() else 0.0


def _single(off: Floats, draws: Draws) -> tuple[float, Floats]:
    """The share of the deviations' variance that is between samples: explained by sums over the samples, each of which
    takes a minibatch from what they tell. And how alike samples are by what explains it."""
    count, total = len(off), float(off @ off)
    sums = draws.sums[:, : math.isqrt(count)]
    sums = sums - sums.mean(axis=0)
    scale = sums.std(axis=0)
    of = np.flatnonzero(scale > 0)
    base = np.linalg.qr(sums[:, of] / scale[of])[0]
    free = count - 1 - base.shape[1]
    if free <= 1 or not base.shape[1] or not total:
        return EVEN, draws.like
    rest = off - base @ (base.T @ off)
    share = 1 - float(rest @ rest) / free * (count - 1) / total
    share = float((free * np.clip(share, 0, 1) + base.shape[1] * EVEN) / (free + base.shape[1]))
    if len(draws.like) == 1:
        return share, draws.like
    weights = np.linalg.lstsq(sums[:, of] / scale[of], off, rcond=None)[0] / scale[of]
    return share, draws.likeness(draws.terms[:, of] @ weights)


def _reach(farther: float, variance: float, alike: float, freedom: float, level: float) -> float:
    """How far the mean may be to one side, if one more minibatch brings it so much `farther`. Student's."""
    from scipy.special import stdtrit

    spread = variance * (alike - 1) / (alike * (alike + 1)) + farther**2
    return farther + float(stdtrit(freedom, level)) * math.sqrt(spread)


def _freedom(off: Floats, alike: float) -> float:
    """Degrees that a variance has by the kurtosis of its deviations, which is at most their number: two at least, and
    fewer the heavier the tails are."""
    found = 2 * alike / (max(_kurtosis(off), KURTOSIS) - 1)
    return min(len(off) - 1.0, max(2.0, found))
