"""How a device's speed swings: a neighbor on the host, a clock that follows the heat.

Cores of one machine can differ for longer than a step takes and for shorter than a minibatch. A mean does not show it,
and yet whoever waits for the slowest device pays for it. So it is read off repeats of the same work: how much less they
differ on one device within moments than on two devices.
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


@dataclass(frozen=True, slots=True)
class Swing:
    """Standard deviation of the speed from one spell to the next, as a fraction, and seconds of a spell."""

    size: float = 0.0
    spell: float = 0.0


def swing(rows: Sequence[Compute]) -> Swing:
    """From rows that say when and on which device they were; nothing where too few do, or where nothing swings."""
    lags, halves = _pairs(sorted(_moments(rows)))
    near = lags < np.inf
    if min(near.sum(), (~near).sum()) < LEAST_PAIRS:
        return Swing()
    return _fitted(lags, halves)


def _moments(rows: Sequence[Compute]) -> list[tuple[int, int, float, float]]:
    """Minibatch, device, time, and how many times as long as usual (a logarithm) a call took."""
    groups: dict[tuple[str, int, float, int], list[Compute]] = {}
    for row in rows:
        if row.minibatch and row.kind not in SHORT:
            groups.setdefault((row.kind, row.tokens, row.squares, row.samples), []).append(row)
    found = []
    for alike in groups.values():
        usual = float(np.median([row.seconds for row in alike]))
        late = (float(np.clip(np.log(row.seconds / usual), -MOST, MOST)) for row in alike)
        found += [(row.minibatch, row.device, row.at, x) for row, x in zip(alike, late, strict=True)]
    return found


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
