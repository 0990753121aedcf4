"""How far an estimate may be off, by what kind of run it is of and by how many publishers showed it.

A run is of one family of GPUs, and may be of experts, of adapters, in fp8 and more. What each kind adds to the variance
of the logarithm of a step's seconds is learnt from runs whose publisher had no part in the estimate
(`make published`), from a start that stands for what nobody covers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odcsim.model import Model
from odcsim.recipe import Recipe

INTERVAL = 1.645  # standard deviations on either side of the median that hold 90 %
# What a kind adds where nobody published a run, as a standard deviation; a family of GPUs by itself adds FAMILY.
FAMILY = 0.12
STARTS = {"compiled": 0.05, "plain": 0.15, "experts": 0.2, "adapters": 0.1, "fp8": 0.1, "policy": 0.15}
WEIGHS = 2  # publishers that a start weighs as much as


@dataclass(frozen=True, slots=True)
class Spread:
    """What one kind of run adds: the standard deviation of the logarithm of a step's seconds, and who showed it."""

    deviation: float
    publishers: int


def kinds(family: str, model: Model, chosen: Recipe) -> list[str]:
    """What kinds of run this is, its family of GPUs first. Linear attention leans on young kernels as experts do."""
    own = {
        chosen.kernels.stack: chosen.kernels.stack in STARTS,
        "experts": bool(model.experts or model.linear_layers),
        "adapters": bool(chosen.lora),
        chosen.kernels.loss: chosen.kernels.loss in STARTS,
        chosen.kernels.precision: "precision" in chosen.unusual,
    }
    return [family, *(name for name, true in own.items() if true)]


def start(kind: str) -> Spread:
    """Of a kind that nobody published a run of."""
    return Spread(STARTS.get(kind, FAMILY), 0)


def widened(one: Spread) -> float:
    """The deviation of a normal curve whose 90 % reach as far as Student's t does, by what it was learnt from."""
    degrees = one.publishers + WEIGHS
    cubed, fifth = (INTERVAL**3 + INTERVAL) / 4, (5 * INTERVAL**5 + 16 * INTERVAL**3 + 3 * INTERVAL) / 96
    return one.deviation * (1 + (cubed / degrees + fifth / degrees**2) / INTERVAL)


def together(spreads: Mapping[str, Spread], named: Sequence[str]) -> float:
    """Of a run of these kinds: standard deviation of the logarithm of a step's seconds."""
    return math.hypot(*(widened(spreads.get(name, start(name))) for name in named))
