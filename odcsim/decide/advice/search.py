"""The best way to run on so many devices: ways are screened on few minibatches, as if nothing were
drawn, and the best few are simulated on all.

A way that would be behind those few though its devices shared all work evenly is not even planned.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from odcsim.decide.advice.ways import Site, Way
from odcsim.decide.answer import NEAR
from odcsim.executors import simulation
from odcsim.timeline import Floats

FEW = 6  # minibatches to screen by
KEPT = 5  # ways with on-demand, and as many without, that are simulated


@dataclass(frozen=True, slots=True)
class Trial:
    """A way, and the seconds by which it is screened."""

    way: Way
    seconds: float  # of a token: what packs rows trains on other minibatches


@dataclass(frozen=True, slots=True)
class Finalists:
    """The best ways without on-demand and with it: None where nothing fits."""

    without: Way | None
    with_it: Way | None
    tried: int  # ways that fit
    own: Way | None = None  # the best that a trainer which was asked for runs by itself


def finalists(site: Site) -> Finalists:
    every = site.ways()
    kinds = [(False, False), (False, True), (True, False)]
    sides = [leading(site, (w for w in every if (w.own, w.one_sided) == kind)) for kind in kinds]
    without, with_it, own = (finest(site, [timed(site, way) for way in side]) for side in sides)
    return Finalists(without, with_it, len(every), own)


def leading(site: Site, ways: Iterable[Way]) -> list[Way]:
    """The `KEPT` fastest of them as screening has it."""
    first: list[tuple[float, int, Way]] = []
    for least, number, way in sorted((least_seconds(site, way), number, way) for number, way in enumerate(ways)):
        if len(first) == KEPT and least > first[-1][0]:
            break
        first = sorted([*first, (pace(site, way), number, way)])[:KEPT]
    return [way for *_, way in first]


def least_seconds(site: Site, way: Way) -> float:
    """What screening finds no way to be below: compute shared evenly, and the longest sample on the fastest device."""
    slow = [1.0] * site.devices
    for device, factor in way.cost.cluster.slow:
        slow[device] = factor
    at_once, fastest = sum(1 / factor for factor in slow), min(slow)
    weights = [one.weights for one in site.drawn(way.setting)[:FEW]]
    return float(sum(max(of.sum() / at_once, of.max() * fastest) for of in weights)) / tokens(site, way)


def tokens(site: Site, way: Way, few: int = FEW) -> int:
    """Of the first minibatches."""
    return sum(int(one.lengths.sum()) for one in site.drawn(way.setting)[:few])


def pace(site: Site, way: Way) -> float:
    """Seconds of a token, as screening has it."""
    return float(screened(site, way).sum()) / tokens(site, way)


def busy(site: Site) -> float:
    """Devices that a minibatch can keep busy, on average: a sample is one device's, and the heaviest sets the pace."""
    weights = [one.weights for one in site.drawn(site.settings[0])]
    return float(sum(of.sum() for of in weights) / sum(of.max() for of in weights))


def screened(site: Site, way: Way) -> Floats:
    file = site.plan(way, min(FEW, site.minibatches), exactly=False)
    return simulation.makespans(file.schedules, way.cost.calm)


def timed(site: Site, way: Way) -> Trial:
    """By the scan, as a row would have it; where links are shared or something is drawn, on fewer minibatches by the
    executor that knows that."""
    schedules = site.plan(way, site.minibatches).schedules
    schedules = schedules[:FEW] if way.cost.cluster.eventful else schedules
    seconds = simulation.makespans(schedules, way.cost, seed=way.setting.seed).sum()
    return Trial(way, float(seconds) / tokens(site, way, len(schedules)))


def finest(site: Site, ways: list[Trial]) -> Way | None:
    """The fastest of these, with whichever balancer makes it faster still. Hybrid sharding and lb-robust, which are
    usual, where they cost next to nothing."""
    if not ways:
        return None
    first = min(ways, key=lambda one: one.seconds)
    every = [first, *(timed(site, other) for other in first.way.others())]
    fastest = min(one.seconds for one in every)
    near = (o for o in (*ways, *every) if o.seconds <= NEAR * fastest)
    return min(near, key=lambda o: (o.way.cost.sharded != "hybrid", not o.way.advised, o.seconds)).way
