"""Where on-demand stops paying: its lead over the best without it, as one thing after the other is changed.

At each point both sides run the same minibatches, each by its best balancer, at a token limit that is chosen anew where
nobody gave one: else a curve would show what a bad limit does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np

from odcsim import catalog
from odcsim.balance import advised, standing_for
from odcsim.cost import Cost
from odcsim.decide import room, sharding
from odcsim.decide.answer import NOTABLE
from odcsim.decide.asking import setting_of
from odcsim.decide.evaluate import Planner, least_trusted
from odcsim.decide.setting import Setting, assign, drawn
from odcsim.errors import InputError
from odcsim.executors import simulation
from odcsim.program import SIDES
from odcsim.question import Question
from odcsim.schedule import Schedule
from odcsim.trace import Trace

Schedules = Sequence[Schedule]
Lead = Callable[[Setting], float | None]
MINIBATCHES = 12
TIMES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # of the rate of the network
POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)  # of lengths over their mean: 0 makes them alike
MINIBATCH = (1, 2, 4, 8, 16, 32)
OVERHEADS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)  # seconds
FEWEST, MOST = 2, 256  # devices


@dataclass(frozen=True, slots=True)
class Spot:
    """One value of what is changed, and the lead of on-demand there; None where a side does not fit or cannot run."""

    value: float
    label: str
    lead: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """The lead over one thing that is changed. `here`: its value in the question."""

    name: str
    unit: str
    here: str
    spots: tuple[Spot, ...]
    whole: bool = False  # there is nothing between the values

    @property
    def crossings(self) -> list[float]:
        """Where the lead passes what is worth a change: between the values that were tried, or at the one that pays."""
        known = [(s.value, s.lead) for s in self.spots if s.lead is not None]
        pairs = [(a, b) for a, b in pairwise(known) if (a[1] >= NOTABLE) != (b[1] >= NOTABLE)]
        return [max(a, b, key=lambda spot: spot[1])[0] if self.whole else _crossed(*a, *b) for a, b in pairs]

    @property
    def lead_here(self) -> float | None:
        return next((s.lead for s in self.spots if s.label == self.here), None)

    @property
    def leads(self) -> list[float]:
        return [s.lead for s in self.spots if s.lead is not None]


def here(curves: Sequence[Curve]) -> float | None:
    """The lead where nothing is changed, by a curve over whole numbers, which no label rounds."""
    return next((curve.lead_here for curve in curves if curve.whole), None)


def _crossed(x: float, lead: float, other: float, its: float) -> float:
    """By a straight line, over the logarithm where there is one."""
    share = (NOTABLE - lead) / (its - lead)
    return exp(log(x) + share * log(other / x)) if x > 0 and other > 0 else x + share * (other - x)


def balancers(side: str) -> tuple[str, ...]:
    """Those that a quick search tries, and the advised one, which an answer may rest on."""
    return tuple(dict.fromkeys((*standing_for(side), advised(side))))


def planned(setting: Setting, plan: Planner = assign) -> dict[str, list[Schedules]]:
    """The schedules of each side, by each of its balancers."""
    minibatches = drawn(setting)
    return {side: [plan(setting, name, minibatches).schedules for name in balancers(side)] for side in SIDES}


def lead(setting: Setting, plans: Mapping[str, Sequence[Schedules]] | None = None) -> float | None:
    """How many times as fast on-demand is as the best without it. The plans are known where only transfers differ."""
    plans = planned(setting) if plans is None else plans
    met, apart = (_best(setting, side, plans[side]) for side in SIDES)
    return None if met is None or apart is None else met / apart


def trusted(setting: Setting) -> str:
    """How far seconds can be trusted where nothing is changed: of the plans of both sides, the least."""
    sides = [(room.under(setting.cost, side), plans) for side, plans in planned(setting).items()]
    return least_trusted(simulation.fidelity(cost, plan) for cost, plans in sides for plan in plans)


def _best(setting: Setting, side: str, plans: Sequence[Schedules]) -> float | None:
    """Seconds of the fastest of a side's plans that fit memory."""
    cost, memory = room.under(setting.cost, side), setting.cost.cluster.memory_bytes
    fitting = [plan for plan in plans if not memory or _needed(setting, cost, plan) <= memory]
    every = (simulation.makespans(plan, cost, seed=setting.seed) for plan in fitting)
    return min((float(spans.sum()) for spans in every), default=None)


def _needed(setting: Setting, cost: Cost, plan: Schedules) -> float:
    return room.needed(cost, max(schedule.fullest for schedule in plan), setting.trace.longest).total


def curves(asked: Question, *, advance: Callable[[], None] = lambda: None) -> Iterator[Curve]:
    """Of a question whose lengths are read. `advance` is called once for each curve that is done."""
    for curve in (_network, _devices, _model, _minibatch, _variation, _overhead):
        if (made := curve(asked)) is not None:
            yield made
        advance()


def _usual(asked: Question, **other: Any) -> Setting:
    """The question with something changed, and without the search for a token limit."""
    return setting_of(replace(asked, **other), limited=False)


def _lead(asked: Question) -> Lead:
    """At a limit that is chosen anew, where nobody gave one."""

    def of(setting: Setting) -> float | None:
        try:
            return lead(sharding.limited(setting) if asked.max_tokens is None else setting)
        except InputError:
            return None  # such as a trace too short for so many samples

    return of


def _spots(lead_of: Lead, settings: Sequence[tuple[float, str, Callable[[], Setting]]]) -> tuple[Spot, ...]:
    spots = []
    for value, label, make in settings:
        try:
            found = lead_of(make())
        except InputError:
            found = None
        spots.append(Spot(value, label, found))
    return tuple(spots)


def _network(asked: Question) -> Curve | None:
    return network(_usual(asked), _lead(asked))


def network(usual: Setting, lead_of: Lead) -> Curve | None:
    """Between nodes; of one node its links."""
    cluster = usual.cost.cluster
    several = cluster.nodes > 1
    rate = cluster.nic_bandwidth if several else cluster.link_bandwidth
    if cluster.gpus == 1 or not np.isfinite(rate):
        return None

    def at(times: float) -> Setting:
        nic, link = (times, 1.0) if several else (1.0, times)
        other = replace(
            cluster, nic_bandwidth=nic * cluster.nic_bandwidth, link_bandwidth=link * cluster.link_bandwidth
        )
        return replace(usual, cost=replace(usual.cost, cluster=other))

    def label(times: float) -> str:
        return f"{rate * times * 8 / 1e9:.0f}" if several else f"{rate * times / 1e9:.0f}"

    name, unit = ("network", "Gb/s per GPU") if several else ("links in a node", "GB/s")
    made = [(float(label(t)), label(t), lambda t=t: at(t)) for t in TIMES]
    return Curve(name, unit, label(1.0), _spots(lead_of, made))


def _devices(asked: Question) -> Curve:
    here, many = _usual(asked).cost.cluster.gpus, FEWEST
    counts = set()
    while many <= MOST:
        counts.add(many)
        many *= 2
    made = [(float(n), f"{n}", lambda n=n: _usual(asked, devices=n)) for n in sorted(counts | {here})]
    return Curve("devices", "", f"{here}", _spots(_lead(asked), made), whole=True)


def _model(asked: Question) -> Curve | None:
    """Of the same family, where the catalogue has several sizes."""
    family = asked.model.lower().rpartition("-")[0]
    names = [n for n in catalog.model_names() if family and n.rpartition("-")[0] == family]
    if len(names) < 3 or asked.profile:
        return None
    sizes = sorted((catalog.model(name).parameters / 1e9, name) for name in names)
    made = [(size, f"{size:.1f}", lambda n=name: _usual(asked, model=n)) for size, name in sizes]
    here = f"{catalog.model(asked.model).parameters / 1e9:.1f}"
    return Curve("model size", "B parameters", here, _spots(_lead(asked), made))


def _minibatch(asked: Question) -> Curve:
    here = _usual(asked).minibatch
    made = [
        (float(k), f"{k}", lambda k=k: _usual(asked, minibatch=k, global_batch=None))
        for k in sorted({*MINIBATCH, here})
    ]
    return Curve("minibatch", "samples per device", f"{here}", _spots(_lead(asked), made), whole=True)


def _variation(asked: Question) -> Curve:
    traces = [varied(asked.trace, power) for power in POWERS]
    made = [(cv(t), f"{cv(t):.2f}", lambda t=t: _usual(asked, trace=t)) for t in traces]
    return Curve("length variation", "(deviation / mean)", f"{cv(asked.trace):.2f}", _spots(_lead(asked), made))


def varied(trace: Trace, power: float) -> Trace:
    """Lengths of about the same mean, whose distances from it are stretched or shrunk; none is longer than twice the
    longest."""
    raw = (trace.lengths / trace.mean) ** power
    weights = np.ones(len(raw)) if trace.counts is None else trace.counts
    lengths = raw * trace.mean / np.average(raw, weights=weights)
    return replace(trace, lengths=np.clip(np.rint(lengths), 1, 2 * trace.longest).astype(np.int64), loss=None)


def cv(trace: Trace) -> float:
    weights = np.ones(len(trace.lengths)) if trace.counts is None else trace.counts
    deviation = np.sqrt(np.average((trace.lengths - trace.mean) ** 2, weights=weights))
    return float(deviation / trace.mean)


def _overhead(asked: Question) -> Curve:
    usual = _usual(asked)
    profile = usual.cost.profile

    held = profile.overhead + profile.microbatch

    def at(seconds: float) -> Setting:
        emptier = replace(profile.below, microbatch=profile.below.microbatch if seconds == held else seconds)
        other = replace(profile, overhead=0.0, microbatch=seconds, below=emptier) if seconds != held else profile
        return replace(usual, cost=replace(usual.cost, profile=other))

    made = [(s, f"{1000 * s:g}", lambda s=s: at(s)) for s in sorted({*OVERHEADS, held})]
    return Curve("fixed cost of a microbatch", "ms", f"{1000 * held:g}", _spots(_lead(asked), made))
