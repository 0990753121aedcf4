"""Seconds of each step become shares with an interval over steps."""

import math
from collections.abc import Mapping

import numpy as np

from odcsim.decide.diagnosis.found import PARTS, StepPart
from odcsim.timeline import Floats

LEVEL = 0.95  # of the upper end: 90 % lie between the two


def step_parts(by_step: Mapping[str, Floats]) -> tuple[StepPart, ...]:
    """The mean of each part over steps, and its share of the step as a ratio of sums."""
    whole: Floats = np.sum([by_step[name] for name in PARTS], axis=0)
    return tuple(_part(name, by_step[name], whole) for name in PARTS)


def _part(name: str, seconds: Floats, whole: Floats) -> StepPart:
    """The interval is that of a ratio of sums, by its linear part; one step has none."""
    if not len(whole) or not whole.sum():
        return StepPart(name, 0.0, 0.0, 0.0, 0.0)
    share = float(seconds.sum() / whole.sum())
    off = mean_off(seconds - share * whole) / float(whole.mean())
    return StepPart(name, float(seconds.mean()), share, max(0.0, share - off), min(1.0, share + off))


def mean_off(left: Floats) -> float:
    """How far a mean may be off."""
    if (n := len(left)) < 2:
        return 0.0
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, LEVEL)) * float(left.std(ddof=1)) / math.sqrt(n)
