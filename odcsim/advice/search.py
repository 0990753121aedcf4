"""The best way to run on so many devices: every way is screened in closed form, and the best few are simulated."""

from dataclasses import dataclass

import numpy as np

from odcsim.advice.ways import Site, Way
from odcsim.executors import quick, simulation
from odcsim.executors.simulation import Simulation
from odcsim.questions.answer import NEAR, NOTABLE, ROBUST
from odcsim.timeline import Floats

FEW = 6  # minibatches to screen by
KEPT = 5  # ways with on-demand, and as many without, that are simulated


@dataclass(frozen=True, slots=True)
class Trial:
    """A way, and the seconds of each minibatch under it."""

    way: Way
    seconds: Floats
    microbatches: float  # of a device, on average
    fidelity: str  # of the seconds, for these schedules

    @property
    def mean(self) -> float:
        return float(self.seconds.mean())


@dataclass(frozen=True, slots=True)
class Best:
    """The best ways without on-demand and with it: None where nothing fits."""

    without: Trial | None
    with_it: Trial | None
    tried: int  # ways that fit

    @property
    def gain(self) -> float | None:
        """How many times as fast on-demand is."""
        return self.without.mean / self.with_it.mean if self.without and self.with_it else None

    @property
    def pays(self) -> bool:
        """Whether on-demand leads by what somebody would change their training loop for, or alone fits."""
        return self.without is None or (self.gain or 0.0) >= NOTABLE

    @property
    def chosen(self) -> Trial | None:
        return self.with_it if self.pays else self.without


def best(site: Site) -> Best:
    every = [(float(screened(site, way).sum()), number, way) for number, way in enumerate(site.ways())]
    sides = [sorted(one for one in every if one[2].on_demand is side) for side in (False, True)]
    without, with_it = (finest(site, [timed(site, way) for *_, way in side[:KEPT]]) for side in sides)
    return Best(without, with_it, len(every))


def screened(site: Site, way: Way) -> Floats:
    file = site.plan(way, min(FEW, site.wish.minibatches), exactly=False)
    return quick.seconds(way.cost, file.schedules)


def timed(site: Site, way: Way) -> Trial:
    """By the scan, or on fewer minibatches by the executor that knows what the scan does not."""
    schedules, cluster = site.plan(way, site.wish.minibatches).schedules, way.cost.cluster
    drawn = cluster.shared_links or cluster.jitter or cluster.swing
    schedules = schedules[:FEW] if drawn else schedules
    how = Simulation(way.cost, executor="des" if drawn else "analytic", seed=site.wish.seed)
    counts = [sum(schedule.microbatches) + len(schedule.queue) for schedule in schedules]
    mean, fidelity = sum(counts) / len(counts) / site.devices, simulation.fidelity(way.cost, schedules)
    return Trial(way, simulation.makespans(schedules, how), mean, fidelity)


def finest(site: Site, ways: list[Trial]) -> Trial | None:
    """The fastest of these, with whichever balancer makes it faster still. lb-robust where it costs next to nothing."""
    if not ways:
        return None
    first = min(ways, key=lambda one: one.mean)
    every = [first, *(timed(site, other) for other in first.way.others())]
    fastest = min(every, key=lambda one: one.mean)
    return next((o for o in every if o.way.balancer == ROBUST and o.mean <= NEAR * fastest.mean), fastest)


def spread(seconds: Floats) -> float:
    """Nine times in ten the mean over all minibatches of the run is this near to that of those drawn, as a share."""
    count = len(seconds)
    return float(1.645 * np.std(seconds, ddof=1) / np.sqrt(count) / seconds.mean()) if count > 1 else 0.0
