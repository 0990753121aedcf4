"""Costs learned while training, from seconds that anybody measures: what to weigh samples by, and how fast devices are.

    costs = LearnedCosts(devices)
    for minibatch in data:
        found = plan(lengths, devices=devices, max_tokens=65536, balancer="lb-mini",
                     weights=costs.weights(lengths), speeds=costs.speeds)
        ...                                                  # run and time this device's microbatches
        for device, timed in enumerate(everybody(timings)):  # the same on every device, as from all_gather_object
            for part, seconds in timed:
                costs.update([part], seconds, device)        # `part`: the lengths of that microbatch's samples

Plans are alike on every device as long as every device was told the same measurements in the same order.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from odcsim.balance.library import EVEN
from odcsim.errors import InputError
from odcsim.fitting.robust import MAD, solve_near
from odcsim.support.values import whole_numbers

Floats = NDArray[np.float64]

KEPT = 4096  # measurements, or 8 per device: a minibatch or a few, so that drift is followed
LEAST, MOST = 1e-9, 1e9  # seconds: less is no time, more is another unit
# Beyond what noise does to a device's median. Who is called slow by chance waits a little, and nobody else does; for
# one that is called fast by chance, all others wait.
SLOW, FAST = 3.0, 4.0
ALIKE = 0.01  # speeds closer than this are one
ROUNDS = 6  # of coefficients and speeds in turn
DIGITS = 4  # kept of what was learned, so that processors that round differently still plan alike
FREE = 2.0  # how far coefficients may well be from where they start, in multiples of that
CONSTANT = 0.2  # the same of the constant, in multiples of a typical microbatch


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds of a microbatch = constant + linear x its tokens + quadratic x the sum of its samples' squares."""

    constant: float
    linear: float
    quadratic: float


class LearnedCosts:
    """Holds the latest measurements; what they say is worked out when asked for."""

    def __init__(self, devices: int) -> None:
        if devices < 1:
            raise InputError(f"{devices} devices", fix="give at least 1")
        self.devices = devices
        self._rows: deque[tuple[float, ...]] = deque(maxlen=max(KEPT, 8 * devices))
        self._learned: tuple[Coefficients, Floats] | None = None

    def update(self, microbatches: Iterable[ArrayLike], seconds: float, device: int = 0) -> None:
        """A device took `seconds` to compute these microbatches, each the lengths of its samples; waiting left out.

        One microbatch, or all of a minibatch where only their sum was timed. Nothing run is nothing learned.
        """
        if not 0 <= device < self.devices:
            raise InputError(f"device {device} of {self.devices}", fix=f"devices go from 0 to {self.devices - 1}")
        parts = [whole_numbers("length", part, 1).astype(np.float64) for part in microbatches]
        parts = [part for part in parts if len(part)]
        if not 0 <= seconds <= MOST:
            raise InputError(f"{seconds} seconds for a measurement", fix=f"give seconds, up to {MOST:.0e}")
        took = float(seconds)
        if parts and took >= LEAST:
            squares = sum(float((part * part).sum()) for part in parts)
            self._rows.append((device, took, len(parts), sum(float(part.sum()) for part in parts), squares))
            self._learned = None

    def weights(self, lengths: ArrayLike) -> Floats:
        """What each sample brings, in seconds of a device of speed 1; before any measurement, in tokens' worth."""
        length = whole_numbers("length", lengths, 1).astype(np.float64)
        seconds: Floats = self.coefficients.linear * length + self.coefficients.quadratic * length * length
        return seconds

    @property
    def coefficients(self) -> Coefficients:
        """What was learned of microbatches."""
        return self._learn()[0]

    @property
    def speeds(self) -> Floats:
        """Of each device; the middle one's is 1, and so is that of a device that nothing certain is known of."""
        return self._learn()[1]

    def _learn(self) -> tuple[Coefficients, Floats]:
        if self._learned is None:
            self._learned = learn(self._rows, self.devices)
        return self._learned


def learn(rows: Sequence[tuple[float, ...]], devices: int) -> tuple[Coefficients, Floats]:
    """Coefficients and speeds from (device, seconds, microbatches, tokens, squares): fits of the one given the other.

    Errors are relative, and a few bad measurements move little. Where measurements are too much alike to tell linear
    from quadratic the ratio stays as it was and only the scale is learned.
    """
    if not rows:
        return Coefficients(0.0, 1.0, 1 / EVEN), np.ones(devices)
    table = np.array(rows)
    owner, seconds, columns = table[:, 0].astype(np.int64), table[:, 1], table[:, 2:]
    speeds = np.ones(devices)
    for _ in range(ROUNDS):
        coefficients = _fit(columns, seconds * speeds[owner])
        logs = np.log(seconds / (columns @ coefficients))
        medians = _medians(owner, logs, devices)
        speeds = np.exp(np.median(medians[np.unique(owner)]) - medians)
    speeds = np.where(_certain(owner, logs, speeds), speeds, 1.0)
    every = [*_fit(columns, seconds * speeds[owner]), *speeds]
    constant, linear, quadratic, *rest = (float(f"{value:.{DIGITS}g}") for value in every)
    return Coefficients(constant, linear, quadratic), np.array(rest)


def _fit(columns: Floats, seconds: Floats) -> Floats:
    """Near the ratio without measurements, at the scale of these ones."""
    start = np.array([0.0, 1.0, 1 / EVEN])
    near = start * np.median(seconds / (columns @ start))
    within = FREE * near
    within[0] = CONSTANT * np.median(seconds / columns[:, 0])
    coefficients = solve_near(columns, seconds, near, within)
    # Seconds that do not grow with length say nothing of samples, and weights of nothing balance nothing.
    return coefficients if coefficients[1:].any() else np.append(coefficients[0], near[1:])


def _medians(owner: NDArray[np.int64], logs: Floats, devices: int) -> Floats:
    """Of each device; of one without measurements, those of the others."""
    order = owner.argsort(kind="stable")
    known, starts = np.unique(owner[order], return_index=True)
    own_medians = np.array([np.median(own) for own in np.split(logs[order], starts[1:])])
    medians = np.full(devices, np.median(own_medians))
    medians[known] = own_medians
    return medians


def _certain(owner: NDArray[np.int64], logs: Floats, speeds: Floats) -> NDArray[np.bool_]:
    """Which devices' speeds are neither noise nor next to nothing."""
    counts = np.bincount(owner, minlength=len(speeds))
    order = owner.argsort(kind="stable")
    # What differs between two measurements of one device; where none was measured twice, what is left of all.
    gaps = np.diff(logs[order])[np.diff(owner[order]) == 0] / math.sqrt(2)
    left = gaps if len(gaps) else logs - np.median(logs)
    # Of a median of n normal values, within a tenth.
    share = np.sqrt(math.pi / 2 / (np.maximum(counts, 1) + math.pi / 2 - 1))
    noise = MAD * float(np.median(np.abs(left))) * share
    sigmas = np.where(speeds < 1, SLOW, FAST)
    certain: NDArray[np.bool_] = np.abs(np.log(speeds)) > np.maximum(ALIKE, sigmas * noise)
    return certain
