"""What it costs to balance by the wrong weights: plans made by other people's costs, run at the true ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from odcsim.balance import standing_for
from odcsim.decide import room
from odcsim.decide.setting import Drawn, Setting, assign, drawn
from odcsim.executors import simulation
from odcsim.neighbours.verl import TOKEN
from odcsim.program import SIDES

# The linear and the quadratic part of a sample's weight, in any unit.
WEIGHTS: Mapping[str, tuple[float, float]] = {
    "tokens alone": (1.0, 0.0),
    f"{TOKEN:,} L + L^2 (verl)": (TOKEN, 1.0),
    "squares of lengths alone": (0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Regret:
    """How many times as long each sync takes by these weights as by the true ones."""

    name: str
    times: Mapping[str, float]  # by sync


def regrets(setting: Setting) -> list[Regret]:
    minibatches = drawn(setting)
    right = {side: _seconds(setting, side, minibatches) for side in SIDES}
    return [
        Regret(name, {side: _seconds(setting, side, _weighed(minibatches, *parts)) / right[side] for side in SIDES})
        for name, parts in WEIGHTS.items()
    ]


def _weighed(minibatches: list[Drawn], linear: float, quadratic: float) -> list[Drawn]:
    def parts(one: Drawn) -> Drawn:
        lengths = one.lengths.astype(np.float64)
        return replace(one, linear=linear * lengths, quadratic=quadratic * lengths**2)

    return [parts(one) for one in minibatches]


def _seconds(setting: Setting, side: str, minibatches: list[Drawn]) -> float:
    # By the weights alone: to simulate both of sorted-slice's deals would tell it the true seconds.
    plan = assign(setting, standing_for(side)[0], minibatches, exactly=False)
    return float(simulation.makespans(plan.schedules, room.under(setting.cost, side)).sum())
