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
PARTS = 8  # whose seconds tell how far off they are
LOOKED_AT = 1 << 15  # samples of a file, for runs


@dataclass(frozen=True, slots=True)
class Draws:
    """What an interval has to know of the minibatches.

    Pairs of draws are told apart by what they have in common: the sample itself; then the prompt or, where neighbours
    are alike, being 1, 2, ... apart in the file.
    """

    distinct: int  # minibatches, before their order starts over
    pairs: Floats  # of each kind those of one minibatch, and those of all [kind, 2]
    sums: Floats  # over the samples' work [minibatch, sum]
    samples: int = 0  # of a minibatch
    size: int = 1  # of the trace
    terms: Floats = field(default_factory=lambda: np.zeros((0, 1)))  # what is summed, of each sample ...
    kin: Ints | float | None = None  # ... and its prompt, or how alike siblings are; None: it is in the file's order
    like: Floats = field(default_factory=lambda: np.ones(1))  # how alike samples of each kind of pair are by their work
    of: float = math.inf  # samples that there are, of which the trace is a part
    # Where samples alike in length meet: minibatches to a part that chance alone drew; of few parts instead the order
    # of draws in minibatches by chance, and each draw's share of its own.
    together: int = 1
    mixed: tuple[Ints, Floats] | None = None

    def of_all(self, size: int) -> "Draws":
        """The same where so many samples are all that there is: what has been drawn of them is known."""
        return replace(self, of=size)

    def by_chance(self, seconds: Floats) -> Floats:
        """The seconds of what chance drew."""
        if self.mixed is None:
            whole = len(seconds) // self.together * self.together if self.together > 1 else len(seconds)
            return np.asarray(seconds[:whole].reshape(-1, self.together).sum(axis=1))
        order, shares = self.mixed
        each = (seconds[: self.distinct, None] * shares).ravel()[order]
        return np.asarray(each.reshape(self.distinct, -1).sum(axis=1))

    def likeness(self, values: Floats) -> Floats:
        """How alike such values of samples are, of each kind of pair."""
        if len(self.pairs) == 1:
            return np.ones(1)
        if self.kin is None:
            return np.append(1.0, np.clip(_correlations(values)[0][: len(self.pairs) - 1], 0, 1))
        return np.array([1.0, self.kin if isinstance(self.kin, float) else intraclass(values, self.kin)])

    def common(self, like: Floats) -> tuple[float, float]:
        """The share of its samples that a minibatch has in common with another one, or that are so much alike; and of
        the variance between samples the part that is left in the mean. Likeness counts for those outside the trace."""
        shares = []
        for weights in (like, np.eye(1, len(like))[0]):
            inside, every = map(float, weights @ self.pairs)
            between = (every - inside) / (inside * (self.distinct - 1)) if self.distinct > 1 else 0.0
            shares.append((between, every / (inside * self.distinct)))
        (shared, lasting), (same, singly) = shares
        outside = max(0.0, 1 - self.size / self.of)
        left = max(0.0, singly - self.samples / self.of)
        return same + outside * (shared - same), left + outside * (lasting - singly)


def draws(
    ids: Sequence[Ints],
    work: Sequence[Floats],
    size: int,
    *,
    kin: Sequence[Ints] | None = None,
    file: Floats | None = None,
    siblings: tuple[int, float] = (1, 0.0),
    whole: bool = False,
    together: int = 1,
) -> Draws:
    """`work` of the samples of each minibatch; `size` of the trace. `kin`: which prompt each is of, where samples of
    one are alike. `file`: the work of samples in its order, where it has one and no prompts are known. `siblings`: how
    many are of one prompt and how alike, where nobody knows which. `whole`: the trace is all that there is.
    Of so many minibatches `together` chance drew the samples, and not which of them meet. Minibatches of unlike sizes
    were recorded: each sample is in one of them."""
    if len({len(minibatch) for minibatch in ids}) > 1:
        return apart(len(ids))
    repeats = (n for n, minibatch in enumerate(ids[1:], 1) if np.array_equal(minibatch, ids[0]))
    distinct = next(repeats, len(ids)) if len(ids[0]) < size else len(ids)
    numbers, loads = np.stack(ids[:distinct]), np.stack(work[:distinct])
    mixed = None
    if distinct // together >= PARTS:
        distinct //= together
        numbers = numbers[: distinct * together].reshape(distinct, -1)
        loads = loads[: distinct * together].reshape(distinct, -1)
    elif together > 1:
        order, together = np.random.default_rng(0).permutation(numbers.size), 1
        mixed = order, loads / loads.sum(axis=1, keepdims=True)
        numbers, loads = numbers.ravel()[order].reshape(numbers.shape), loads.ravel()[order].reshape(loads.shape)
    of = np.zeros(0) if file is None or kin is not None or siblings[0] > 1 else file[:LOOKED_AT]
    pairs = _pairs(numbers, _reach_of(of))
    kinship: Ints | float | None = None
    if kin is not None:
        prompts, first = np.concatenate(kin), np.unique(numbers, return_index=True)[1]
        prompts = (prompts if mixed is None else prompts[mixed[0]])[: numbers.size].reshape(numbers.shape)
        pairs = np.concatenate([pairs, _pairs(prompts) - pairs])
        of, kinship = loads.ravel()[first], prompts.ravel()[first]
    elif siblings[0] > 1 and size > 1:  # as many pairs of them as there are by chance
        others = np.array([distinct * numbers.shape[1] ** 2, numbers.size**2]) - pairs
        pairs, kinship = np.concatenate([pairs, (siblings[0] - 1) / (size - 1) * others]), siblings[1]

    def terms(work: Floats) -> Floats:
        """Powers of samples' work, and what is over its quantiles, along a last axis."""
        over = (np.maximum(work - bend, 0.0) for bend in np.quantile(loads, BENDS))
        return np.stack([*(work**power for power in POWERS), *over], axis=-1)

    sums = terms(loads).sum(axis=1)
    about = Draws(distinct, pairs, sums, numbers.shape[1], size, terms(of), kinship, together=together, mixed=mixed)
    return replace(about, like=about.likeness(of), of=size if whole else math.inf)


def apart(minibatches: int) -> Draws:
    """No sample is in two of them."""
    return Draws(minibatches, np.full((1, 2), minibatches, dtype=np.float64), np.zeros((minibatches, 1)))


def _pairs(labels: Ints, reach: int = 0) -> Floats:
    """How many pairs of draws have labels [minibatch, draw] that are 0, 1, ... apart, each with itself among them: of
    one minibatch, and of all [apart, 2]."""
    own = labels + (int(labels.max()) + 1 + reach) * np.arange(len(labels))[:, None]
    pairs = np.zeros((reach + 1, 2))
    for column, of in enumerate((own, labels)):
        distinct, times = np.unique(of, return_counts=True)
        pairs[0, column] = times @ times
        for gap in range(1, reach + 1):
            place = np.searchsorted(distinct, distinct + gap).clip(max=len(distinct) - 1)
            pairs[gap, column] = 2 * (times @ np.where(distinct[place] == distinct + gap, times[place], 0))
    return pairs


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
    count = len(work)
    if count < 2 * RUNS or not work.std():
        return 0
    _, places, times = np.unique(work, return_inverse=True, return_counts=True)
    near, distant = _correlations((np.cumsum(times) - times / 2)[places])  # ranks: the middle of those that are alike
    clear = np.cumsum(near) * np.sqrt(count / np.arange(1, len(near) + 1))
    if clear.max() < CLEAR or distant > near[0]:
        return 0
    before = np.cumsum(np.append(0.5, near[:-1] ** 2)) * 2  # by Bartlett: so many times as far as if none were alike
    small = np.flatnonzero(near < SHORT * np.sqrt(before / count))
    return int(small[0]) if len(small) else len(near)


def _correlations(values: Floats) -> tuple[Floats, float]:
    """Of values with those 1, 2, ... places on, less that of those up to twice as far; and the latter. By squares of
    differences, which a trend through the file hardly adds to."""
    values, count, most = values - values.mean(), len(values), min(REACH, len(values) // RUNS)
    gaps = np.arange(1, 2 * most + 1)
    waves = np.fft.rfft(values, 1 << (count + 2 * most - 1).bit_length())
    products = np.fft.irfft(waves * waves.conj())[gaps]
    squares = np.append(0.0, np.cumsum(values**2))
    off = (squares[count - gaps] + squares[-1] - squares[gaps] - 2 * products) / (count - gaps)
    likeness = 1 - off / (2 * squares[-1] / count or 1.0)
    distant = float(likeness[most:].mean())
    return likeness[:most] - distant, distant


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
    above, below = draws.by_chance(above), draws.by_chance(below)
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
    from scipy.special import stdtrit  # Student's

    alike = (single + 1 - share) / left  # so many minibatches without a common sample tell as much
    variance = (single + 1 - share) * float(off @ off) / (count - 1)
    met, fewest = _met(share, like, draws, alike)
    beyond = 1 / (met + 1) - 1 / (alike + 1)  # as large a share of the minibatches is farther off than of fewer any is
    # A variance has degrees of freedom by the kurtosis of its deviations: fewer the heavier the tails are.
    freedom = min(len(off) - 1.0, max(2.0, 2 * met / (max(_kurtosis(off), KURTOSIS) - 1)))
    ends = []
    for side in (-off, off):
        edge = max(float(np.quantile(side, 1 - beyond)), FARTHEST)
        farther = max(edge / (met + 1), FARTHEST / (fewest + 1))  # so far the one more brings the mean
        spread = variance * (alike - 1) / (alike * (alike + 1)) + farther**2
        reach = farther + float(stdtrit(freedom, level)) * math.sqrt(spread)
        ends.append(min(reach, FAR * max(float(side.max()), FARTHEST)))
    return ratio * math.exp(-ends[0]), ratio * math.exp(ends[1])


def _met(share: float, like: Floats, draws: Draws, alike: float) -> tuple[float, float]:
    """How many minibatches have been met, for what was not. Where few prompts have the long samples, as the kurtosis of
    work tells, a file has fewer kinds of them than its mean is known by: by what tells in the deviations; and by work,
    where hardly anything told yet."""
    if len(like) == 1:
        return alike, alike
    heavy = float(np.clip((_kurtosis(draws.terms[:, 0]) - NORMAL) / (KURTOSIS - NORMAL), 0, 1))
    same, singly = draws.common(np.eye(1, len(like))[0])
    if not singly or not heavy:
        return alike, alike
    (overlap, lasting), (of_work, left) = draws.common(like), draws.common(draws.like)
    single = share / (1 - same)
    alone = (single + 1 - share) / (single * singly + (1 - share) / draws.distinct)
    kinds = min(alike, alone * (1 - overlap) / lasting * singly / (1 - same))
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
    scaled = sums[:, of] / scale[of]
    base = np.linalg.qr(scaled)[0]
    rank, free = base.shape[1], count - 1 - base.shape[1]
    if free <= 1 or not rank or not total:
        return EVEN, draws.like
    rest = off - base @ (base.T @ off)
    share = np.clip(1 - float(rest @ rest) / free * (count - 1) / total, 0, 1)
    share = float((free * share + rank * EVEN) / (free + rank))
    if len(draws.like) == 1:
        return share, draws.like
    weights = np.linalg.lstsq(scaled, off, rcond=None)[0] / scale[of]
    return share, draws.likeness(draws.terms[:, of] @ weights)
