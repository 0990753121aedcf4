"""How a device's speed swings: a neighbor on the host, a clock that follows the heat.

Cores of one machine can differ for longer than a step takes and for shorter than a minibatch. A mean does not show it,
and yet whoever waits for the slowest device pays for it. So it is read off repeats of the same work: how much less they
differ on one device within moments than on two devices. A device that is slow throughout does not swing: that is told
apart first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from odcsim.measurements import Compute
from odcsim.timeline import Floats

LEAST_PAIRS = 100  # of one device, and of two
MOST = np.log(2.0)  # an interruption counts as a doubling at most
LEAST = 1e-3  # of a swing: below it, rounding
GROUPS = 50  # of pairs about as long apart
CANDIDATES = 40  # lengths of a spell that are tried
SHORT = ("embed",)  # too short to say anything of speed
POLISHES = 4  # of medians, of work and of devices in turn
LEAST_MINIBATCHES = 16  # that all devices ran, to call one slow
ALIKE = 0.02  # a device that is this near to the mean of all is like the others ...
SIGMAS = 5.0  # ... and so is one that chance from minibatch to minibatch may have set so far off


@dataclass(frozen=True, slots=True)
class Swing:
    """Standard deviation of the speed from one spell to the next, as a fraction, and seconds of a spell."""

    size: float = 0.0
    spell: float = 0.0


def swing(rows: Sequence[Compute]) -> Swing:
    """From rows that say when and on which device they were; nothing where too few do, or where nothing swings."""
    told = _told(rows)
    late = np.clip(_late(told)[0], -MOST, MOST).tolist()
    lags, halves = _pairs(sorted((row.minibatch, row.device, row.at, x) for row, x in zip(told, late, strict=True)))
    near = lags < np.inf
    if min(near.sum(), (~near).sum()) < LEAST_PAIRS:
        return Swing()
    return _fitted(lags, halves)


def slow(rows: Sequence[Compute]) -> tuple[float, ...]:
    """How many times as long as the mean of all each device takes, in turn. Nothing where devices are alike, or where
    what sets them apart changes from minibatch to minibatch."""
    told = _told(rows)
    late, factors = _late(told)
    numbers, places = np.unique([row.minibatch for row in told], return_inverse=True)
    owners = np.array([row.device for row in told], dtype=int)
    size, cells = len(numbers) * len(factors), places * len(factors) + owners
    sums = np.bincount(cells, late + factors[owners], size).reshape(-1, len(factors))
    counts = np.bincount(cells, minlength=size).reshape(-1, len(factors))
    common = counts.all(axis=1)
    if len(factors) < 2 or common.sum() < LEAST_MINIBATCHES:
        return ()
    means = sums[common] / counts[common]
    gaps = means - means.mean(axis=1, keepdims=True)
    chance = SIGMAS * gaps.std(axis=0) / np.sqrt(len(gaps))
    if not (np.abs(gaps.mean(axis=0)) > np.maximum(ALIKE, chance)).any():
        return ()
    return tuple((np.exp(factors) / np.exp(factors).mean()).tolist())


def _told(rows: Sequence[Compute]) -> list[Compute]:
    """Those that say when they were, and took long enough to say something."""
    return [row for row in rows if row.minibatch and row.kind not in SHORT]


def _late(rows: Sequence[Compute]) -> tuple[Floats, Floats]:
    """How many times as long as usual for its work and its device each call took, and as the others each device does
    (logarithms). By Tukey's median polish, so that no device needs to have had all the work."""
    logs = np.log([row.seconds for row in rows])
    factors = np.zeros(max((row.device for row in rows), default=0) + 1)
    works: dict[tuple[str, int, float, int], list[int]] = {}
    owners: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        works.setdefault((row.kind, row.tokens, row.squares, row.samples), []).append(place)
        owners.setdefault(row.device, []).append(place)
    for _ in range(POLISHES):
        for alike in works.values():
            logs[alike] -= np.median(logs[alike])
        for device, own in owners.items():
            usual = np.median(logs[own])
            logs[own] -= usual
            factors[device] += usual
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


def _fitted(lags: Floats, halves: Floats) -> Swing:
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
