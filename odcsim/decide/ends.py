"""Whether an answer holds over the whole interval of the seconds: the same schedules with compute at its ends.

Compute stretches, transfers do not: so what hides them, and who gains, may change. Fewer minibatches are enough to see
it, since all rows run the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from odcsim.decide.evaluate import Pair
from odcsim.decide.setting import Setting
from odcsim.executors import simulation
from odcsim.neighbours import named
from odcsim.recipe import Recipe
from odcsim.schedule import ScheduleFile

FEW = 12  # minibatches


@dataclass(frozen=True, slots=True)
class Ends:
    """Seconds of every (balancer, sync) with compute as likely, and at either end of its interval."""

    low: Mapping[Pair, float]
    middle: Mapping[Pair, float]
    high: Mapping[Pair, float]


def ends(setting: Setting, plans: Mapping[str, ScheduleFile], ran: Mapping[Pair, Recipe]) -> Ends | None:
    """`ran`: how each pair ran. None where the seconds come without an interval."""
    profile = setting.cost.profile
    if profile.low == profile.high:
        return None
    factors = (profile.low, 1.0, profile.high)
    found = {p: _seconds(setting, plans[p[0]], recipe, factors) for p, recipe in ran.items() if named(p[0]).even}
    low, middle, high = ({pair: seconds[i] for pair, seconds in found.items()} for i in range(3))
    return Ends(low, middle, high)


def _seconds(setting: Setting, file: ScheduleFile, recipe: Recipe, factors: Sequence[float]) -> list[float]:
    """Of the first minibatches together, by each factor."""
    quiet = replace(setting.cost, cluster=replace(setting.cost.cluster, jitter=0.0, swing=0.0), recipe=recipe)
    few = 4 if quiet.cluster.shared_links else FEW
    costs = (replace(quiet, profile=quiet.profile.stretched(factor)) for factor in factors)
    return [float(simulation.makespans(file.schedules[:few], cost, seed=setting.seed).sum()) for cost in costs]
