"""How a device's speed swings: a neighbor on the host, a clock that follows the heat.

Cores of one machine can differ for longer than a step takes and for shorter than a minibatch. A mean does not show it,
and yet whoever waits for the slowest device pays for it. So it is read off repeats of the same work: how much less they
differ on one device within moments than on two devices. A device that is slow throughout does not swing: that is told
apart first.

A whole machine drifts, too, over minutes. Whoever runs later meets another spell than those that were measured, and
what spells of measuring differ by, each over the fit of all, says how far that one may be off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from odcsim.measurements import Compute
from odcsim.timeline import Floats, Ints

LEAST_PAIRS = 100  # of one device, and of two
MOST = np.log(2.0)  # an interruption counts as a doubling at most
LEAST = 1e-3  # that a device's speed changes by: below it, rounding
GROUPS = 50  # of pairs about as long apart
CANDIDATES = 40  # lengths of a spell that are tried
SHORT = ("embed",)  # too short to say anything of speed
POLISHES = 50  # at most, of medians of work and of devices in turn
POLISHED = 1e-3  # less than this is left of a factor when polishing ends
LEAST_MINIBATCHES = 16  # that all devices ran, to call one slow
LEAST_SPELLS = 6.0  # that a minibatch may fall into: fewer are as good as two
ALIKE = 0.02  # a device that is this near to the mean of all is like the others ...
FEWEST = 3  # spells of a drift: the scatter of two hardly says anything
LEVEL = 0.95  # of the upper end: 90 % lie between two such ends
CHANCE = 0.01  # ... and so is one that is no further off than some device is this often where all are alike


@dataclass(frozen=True, slots=True)
class Swing:
    """Standard deviation of the speed from one spell to the next, as a fraction, and seconds of a spell."""

    size: float = 0.0
    spell: float = 0.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Standard deviation of the speed from one spell to the next (of logarithms), and of how many spells."""

    size: float = 0.0
    spells: int = 0

    @property
    def reach(self) -> float:
        """How far another spell may be from the mean of these: 90 %, as a logarithm."""
        from scipy.special import stdtrit

        if self.spells < FEWEST:
            return 0.0
        return float(stdtrit(self.spells - 1, LEVEL)) * self.size * float(np.sqrt(1 + 1 / self.spells))


def swing(rows: Sequence[Compute]) -> Swing:
    """From rows that say when and on which device they were; nothing where too few do, or where nothing swings."""
    timed = _timed(rows)  # what was done once is late by nothing, whatever it took
    timed = [timed[place] for alike in _works(timed) if len(alike) > 1 for place in alike]
    usual = slow(timed) or (1.0,) * _devices(timed)
    logs = np.log([row.seconds / usual[row.device] for row in timed])
    for alike in _works(timed):
        logs[alike] -= np.median(logs[alike])
    late = np.clip(logs, -MOST, MOST).tolist()
    lags, halves = _pairs(sorted((row.minibatch, row.device, row.at, x) for row, x in zip(timed, late, strict=True)))
    near = lags < np.inf
    if min(near.sum(), (~near).sum()) < LEAST_PAIRS:
        return Swing()
    return _variogram(lags, halves)


def slow(rows: Sequence[Compute]) -> tuple[float, ...]:
    """How many times as long as the mean of all each device takes, in turn. Nothing where devices are alike, or where
    what sets them apart comes and goes, as a swing does."""
    timed = _timed(rows)
    if (devices := _devices(timed)) < 2:
        return ()
    shared = (alike for alike in _works(timed) if len({timed[place].device for place in alike}) > 1)
    timed = [timed[place] for alike in shared for place in alike]  # a device's own says nothing of how it compares
    late, factors = _polished(timed, devices)
    numbers, places = np.unique([row.minibatch for row in timed], return_inverse=True)
    owners = np.array([row.device for row in timed], dtype=int)
    size, cells = len(numbers) * devices, places * devices + owners
    sums = np.bincount(cells, late + factors[owners], size).reshape(-1, devices)
    counts = np.bincount(cells, minlength=size).reshape(-1, devices)
    common = counts.all(axis=1)
    if common.sum() < LEAST_MINIBATCHES:
        return ()
    means = sums[common] / counts[common]
    gaps = means - means.mean(axis=1, keepdims=True)
    if not (np.abs(gaps.mean(axis=0)) > np.maximum(ALIKE, _by_chance(gaps))).any():
        return ()
    times = np.exp(factors) / np.exp(factors).mean()
    return tuple(times.tolist()) if (np.abs(times - 1) > ALIKE).any() else ()


def _by_chance(gaps: Floats) -> Floats:
    """How far off the mean of [minibatch, device] can be by chance, for each device.

    A spell that outlasts a minibatch makes the next one alike, so that there are fewer independent ones: their number
    is taken from the autocorrelation up to where it ends. What is known of that is biased downward, since the mean is
    taken from the same minibatches; this is set right with a first estimate.
    """
    from scipy.special import stdtrit

    n, off = len(gaps), gaps - gaps.mean(axis=0)
    if np.abs(off).max() < LEAST:
        return np.zeros(gaps.shape[1])
    raw = np.array([(off[lag:] * off[: n - lag]).sum() / (n - lag) for lag in range(n // 2)])
    alike = 1.0  # minibatches that count as one
    for _ in range(2):
        correlation = raw / raw[0] + alike / n
        end = int(np.argmin(correlation > 0)) or len(correlation)
        alike = 1 + 2 * correlation[1:end].sum() / correlation[0]
    count = n / alike if n / alike >= LEAST_SPELLS else 2.0
    quantile = -stdtrit(count - 1, CHANCE / 2 / gaps.shape[1])
    return np.asarray(quantile * off.std(axis=0) * np.sqrt((1 + 1 / count) / count))


def _timed(rows: Sequence[Compute]) -> list[Compute]:
    """Those that say when they were, and took long enough to say something."""
    return [row for row in rows if row.minibatch and row.kind not in SHORT]


def _devices(rows: Sequence[Compute]) -> int:
    return max((row.device for row in rows), default=-1) + 1


def _works(rows: Sequence[Compute]) -> list[list[int]]:
    """Places of the same work."""
    groups: dict[tuple[str, int, float, int], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault((row.kind, row.tokens, row.squares, row.samples), []).append(place)
    return [*groups.values()]


def _polished(rows: Sequence[Compute], devices: int) -> tuple[Floats, Floats]:
    """How many times as long as usual for its work and its device each call took, and as the others each device does
    (logarithms). By Tukey's median polish, so that no device needs to have had all the work."""
    logs, factors = np.log([row.seconds for row in rows]), np.zeros(devices)
    owners = np.array([row.device for row in rows], dtype=int)
    works, own = _works(rows), [np.flatnonzero(owners == device) for device in range(devices)]
    for _ in range(POLISHES):
        for alike in works:
            logs[alike] -= np.median(logs[alike])
        usual = np.array([np.median(logs[of]) if len(of) else 0.0 for of in own])
        logs -= usual[owners]
        factors += usual
        if np.abs(usual).max() < POLISHED:
            break
    return logs, factors


def _pairs(moments: Sequence[tuple[int, int, float, float]]) -> tuple[Floats, Floats]:
    """Of all pairs of one minibatch: seconds between them (endless on two devices), half the squared difference."""
    lags, halves = [np.empty(0)], [np.empty(0)]
    for _, of in groupby(moments, key=lambda moment: moment[0]):
        _, device, at, late = (np.array(column) for column in zip(*of, strict=True))
        i, j = np.triu_indices(len(at), 1)
        lags.append(np.where(device[i] == device[j], np.abs(at[i] - at[j]), np.inf))
        halves.append((late[i] - late[j]) ** 2 / 2)
    return np.concatenate(lags), np.concatenate(halves)


def _variogram(lags: Floats, halves: Floats) -> Swing:
    """A variogram: what two calls at one moment differ by, and more the longer ago, until they know nothing of each
    other."""
    from scipy.optimize import nnls

    near, order = int((lags < np.inf).sum()), np.argsort(lags)
    groups = [*np.array_split(order[:near], GROUPS), order[near:]]
    means = np.array([(lags[group].mean(), halves[group].mean()) for group in groups])
    weights = np.sqrt([len(group) for group in groups])
    best = np.inf, Swing()
    if means[-2, 0] <= 0:  # nobody wrote down when the calls were
        return Swing()
    for spell in np.geomspace(max(means[0, 0], 1e-9), means[-2, 0], CANDIDATES):
        columns = np.stack([np.ones(len(groups)), -np.expm1(-means[:, 0] / spell)], axis=1)
        (_, variance), miss = nnls(columns * weights[:, None], means[:, 1] * weights)
        if miss < best[0]:
            best = miss, Swing(float(np.sqrt(variance)), float(spell))
    return best[1] if best[1].size > LEAST else Swing()


def drift(spells: Sequence[int] | Ints, seconds: Floats, fitted: Floats) -> Drift:
    """Of calls whose spell is known (from 1), what they took and what a fit says of them."""
    spell = np.asarray(spells)
    known = spell > 0
    numbers, places = np.unique(spell[known], return_inverse=True)
    if len(numbers) < FEWEST:
        return Drift()
    took, said = (np.bincount(places, of[known]) for of in (seconds, fitted))
    return Drift(float(np.log(took / said).std(ddof=1)), len(numbers))
