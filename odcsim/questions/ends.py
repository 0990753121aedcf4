"""Whether an answer holds over the whole interval of the seconds: the same schedules with compute at its ends.

Compute stretches, transfers do not: so what hides them, and who gains, may change. Fewer minibatches are enough to see
it, since all rows run the same ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from odcsim.balance import named
from odcsim.cost import Cost
from odcsim.executors import simulation
from odcsim.executors.simulation import Simulation
from odcsim.profile import stretched
from odcsim.questions.setting import Setting
from odcsim.recipe import Recipe
from odcsim.schedule import ScheduleFile

FEW = 12  # minibatches
Pair = tuple[str, str]


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
    low, middle, high = (
        {p: _seconds(setting, plans[p[0]], recipe, factor) for p, recipe in ran.items() if named(p[0]).even}
        for factor in (profile.low, 1.0, profile.high)
    )
    return Ends(low, middle, high)


def _seconds(setting: Setting, file: ScheduleFile, recipe: Recipe, factor: float) -> float:
    cost = Cost(setting.cost.model, stretched(setting.cost.profile, factor), setting.cost.cluster, recipe)
    quiet = replace(cost, cluster=replace(cost.cluster, jitter=0.0, swing=0.0))
    how = Simulation(quiet, executor="des" if quiet.cluster.shared_links else "analytic", seed=setting.seed)
    few = 4 if quiet.cluster.shared_links else FEW
    return float(simulation.makespans(file.schedules[:few], how).sum())
