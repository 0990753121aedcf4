"""Where on-demand stops paying: its lead over the best without it, as one thing after the other is changed.

At each value both sides run the same minibatches, each by its best balancer, at a token limit that is chosen anew where
nobody gave one: else a curve would show what a bad limit does. Of rollouts both sides run whole steps, with generation
and passes without backward, which both have.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from odcsim import catalog
from odcsim.answer import Result
from odcsim.balance import advised, standing_for
from odcsim.cost import Cost
from odcsim.decide import room, sharding
from odcsim.decide.asking import question_by, read, setting_of
from odcsim.decide.comparison import fixed, inputs
from odcsim.decide.decision import NOTABLE
from odcsim.decide.evaluate import Planner, least_trusted
from odcsim.decide.remedies import misfits, remedies
from odcsim.decide.rl import Around, Dealer, RolloutBatch, Steps, around_of, batch_of
from odcsim.decide.setting import Drawn, Setting, assign, draw_minibatches
from odcsim.decide.words import BREAK_EVEN
from odcsim.errors import InputError, nearest
from odcsim.executors import simulation
from odcsim.neighbours.verl import TOKEN
from odcsim.program import SIDES
from odcsim.question import Question
from odcsim.schedule import Schedule
from odcsim.trace import Trace

MINIBATCHES = 12
TIMES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # of the rate of the network
DEVICES = (2, 4, 8, 16, 32, 64, 128, 256)
MINIBATCH = (1, 2, 4, 8, 16, 32)
POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)  # of lengths over their mean: 0 makes them alike
STEPS = 4  # of rollouts at each value
BATCHES = ("minibatch", "global_batch")  # which prompts say
OVERHEADS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)  # seconds
# Of each side those that a quick search tries, and the advised one, which an answer may rest on.
BALANCERS = {side: tuple(dict.fromkeys((*standing_for(side), advised(side)))) for side in SIDES}
BySide = Mapping[str, Sequence[Sequence[Schedule]]]  # of each side, by each of its balancers
# What others balance by: the linear and the quadratic part of a sample's weight, in any unit.
WEIGHTS: Mapping[str, tuple[float, float]] = {
    "tokens alone": (1.0, 0.0),
    f"{TOKEN:,} L + L^2 (verl)": (TOKEN, 1.0),
    "squares of lengths alone": (0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Factor:
    """What is changed: its value in the question, how a value is written, and at each what is then in the place of the
    question's: another cost, or other fields."""

    name: str
    unit: str
    here: float
    text: Callable[[Any], str]
    values: Sequence[tuple[float, Any]]  # none where there is nothing to change
    whole: bool = False  # there is nothing between the values


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
    whole: bool  # there is nothing between the values

    @property
    def title(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def leads(self) -> list[float]:
        return [s.lead for s in self.spots if s.lead is not None]

    @property
    def crossings(self) -> list[float]:
        """Where the lead passes what is worth a change: at the one that pays where there is nothing between the values,
        else by a straight line, over the logarithm where there is one."""
        found = []
        known = [(s.value, s.lead) for s in self.spots if s.lead is not None]
        for (x, lead), (other, its) in pairwise(known):
            if (lead >= NOTABLE) != (its >= NOTABLE):
                share = (NOTABLE - lead) / (its - lead)
                between = x * (other / x) ** share if x > 0 and other > 0 else x + share * (other - x)
                found.append((x if lead >= NOTABLE else other) if self.whole else between)
        return found


@dataclass(frozen=True, slots=True)
class Regret:
    """How many times as long each sync takes by these weights as by the true ones."""

    name: str
    times: Mapping[str, float]  # by sync


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A step of rollouts and what it has beside training."""

    batch: RolloutBatch
    around: Around

    def inputs(self) -> dict[str, Any]:
        return {**asdict(self.batch), **self.around.inputs()}

    def lead(self, question: Question, make_setting: Callable[[Question], Setting] = setting_of) -> float | None:
        """How many times as fast a whole step on demand is as the best without, of what fits; None where nothing of a
        side does."""
        steps, best = Steps(question, self.batch, self.around, make_setting), []
        for side, names in BALANCERS.items():
            rows = [row for name in names for row in steps.by(Dealer(name, (side,)))]
            best.append(
                min((step.row.makespan_seconds for step in rows if step.row.memory_fits is not False), default=None)
            )
        met, apart = best
        return None if met is None or apart is None else met / apart


@dataclass(frozen=True, slots=True, repr=False)
class BreakEven(Result):
    """The lead of on-demand as one thing after the other is changed. Not `limited`: each spot has its own limit."""

    setting: Setting
    limited: bool
    curves: tuple[Curve, ...]
    regrets: tuple[Regret, ...]
    ways_out: tuple[str, ...]  # what would fit, where what is asked about does not
    fidelity: str  # of the seconds where nothing is changed
    rollouts: WholeStep | None = None

    @property
    def lead(self) -> float | None:
        """Where nothing is changed, by a curve over whole numbers, which no label rounds."""
        curve = next(curve for curve in self.curves if curve.whole)
        return next((spot.lead for spot in curve.spots if spot.label == curve.here), None)

    def curve(self, name: str) -> Curve:
        known = {curve.name: curve for curve in self.curves}
        if name not in known:
            raise InputError(f"no curve of {name!r:.40}", fix=nearest(str(name), list(known)))
        return known[name]

    def as_json(self) -> dict[str, Any]:
        """As `odcsim break-even --json` prints it."""
        return {
            "schema": 1,
            "inputs": inputs(self.setting) | (self.rollouts.inputs() if self.rollouts else {}),
            "held_fixed": fixed(self.setting, limited=self.limited),
            "fidelity": self.fidelity,
            "lead": self.lead,
            "curves": [{**asdict(curve), "crossings": curve.crossings} for curve in self.curves],
            "regrets": [asdict(regret) for regret in self.regrets],
            "ways_out": list(self.ways_out),
        }

    def records(self) -> list[dict[str, Any]]:
        """A row for each spot of each curve."""
        return [
            {"changed": curve.name, "unit": curve.unit, **asdict(spot), "here": spot.label == curve.here,
             "pays": None if spot.lead is None else spot.lead >= NOTABLE}
            for curve in self.curves
            for spot in curve.spots
        ]  # fmt: skip


@BREAK_EVEN.take
def break_even(
    trace: Trace | str | os.PathLike[str] | ArrayLike,
    model: str,
    *,
    prompts: int | None = None,
    rollouts: int | None = None,
    updates: int = 1,
    forward_passes: int = 2,
    critic: bool = False,
    generation_seconds: float | str | None = None,
    tensor_parallel: int | None = None,
    **words: Any,
) -> BreakEven:
    """How the speedup of on-demand over the best without it moves with one thing at a time: network, devices, model,
    minibatch, lengths, fixed cost. With `prompts` and `rollouts`: of whole steps of reinforcement learning, as
    `odcsim.rl` has them. `words`: the other fields of a question, `devices=8`, and of its recipe."""
    question = read(question_by({"trace": trace, "model": model, **words}))
    if prompts is None and rollouts is None:
        return find_break_even(question)
    if prompts is None or rollouts is None:
        raise InputError("--prompts or --rollouts alone", fix="a step of rollouts has both")
    batch = batch_of(prompts, rollouts, updates, STEPS)
    around = around_of(forward_passes, critic, generation_seconds, tensor_parallel)
    return find_break_even(question, WholeStep(batch, around))


def find_break_even(
    question: Question, rollouts: WholeStep | None = None, *, advance: Callable[[], None] = lambda: None
) -> BreakEven:
    """Of a question whose lengths are read. `advance` is called once for each factor that is done."""
    if rollouts:
        return _of_rollouts(question, rollouts, advance)
    question = replace(question, minibatches=MINIBATCHES)
    setting, usual = setting_of(question), setting_of(question, limited=False)
    limited = question.max_tokens is not None

    def lead_at(given: Any) -> float | None:
        cost = isinstance(given, Cost)
        other = replace(usual, cost=given) if cost else setting_of(replace(question, **given), limited=False)
        return lead(other if limited else sharding.with_limit(other))

    return _of_curves(setting, factors(question, usual), lead_at, limited, None, advance)


def _of_rollouts(question: Question, rollouts: WholeStep, advance: Callable[[], None]) -> BreakEven:
    if question.minibatch or question.global_batch:
        raise InputError("--prompts beside --minibatch or --global-batch", fix="leave one out: each says a batch")
    steps = Steps(question, rollouts.batch, rollouts.around)
    asked = replace(question, max_tokens=steps.setting.limit)

    def lead_at(given: Any) -> float | None:
        if isinstance(given, Cost):
            return rollouts.lead(asked, lambda one: replace(setting_of(one), cost=given))
        own = {name: given[name] for name in ("prompts",) if name in given}
        around = replace(rollouts.around, generation=given.get("generation", rollouts.around.generation))
        other = WholeStep(replace(rollouts.batch, **own), around)
        fields = {name: value for name, value in given.items() if name not in (*own, "generation", *BATCHES)}
        return other.lead(replace(question if fields else asked, **fields))

    kept = [one for one in factors(question, steps.setting) if one.name != "minibatch"]
    batch, seconds = rollouts.batch, steps.generation.seconds
    counts = sorted({batch.prompts * times // 4 for times in (1, 2, 4, 8, 16)} - {0})
    times = sorted({0.0, *(seconds * share for share in (0.25, 0.5, 1.0, 2.0, 4.0))})
    prompts = Factor("prompts", "per step", batch.prompts, str, [(n, {"prompts": n}) for n in counts], whole=True)
    generation = Factor("generation", "s", seconds, "{:.0f}".format, [(s, {"generation": s}) for s in times])
    every = [*kept[:3], prompts, *kept[3:], generation]
    return _of_curves(steps.setting, every, lead_at, question.max_tokens is not None, rollouts, advance)


def _of_curves(
    setting: Setting,
    every: Sequence[Factor],
    lead_at: Callable[[Any], float | None],
    limited: bool,
    rollouts: WholeStep | None,
    advance: Callable[[], None],
) -> BreakEven:
    curves = []
    for factor in every:
        curves += [draw(factor, lead_at)] if factor.values else []
        advance()
    ways_out = tuple(remedies(setting)) if misfits(setting) else ()
    fidelity = least_trusted(simulation.fidelity(setting.cost, plan) for of in plans(setting).values() for plan in of)
    wrong = () if ways_out else regrets(setting)
    return BreakEven(setting, limited, tuple(curves), wrong, ways_out, fidelity, rollouts)


def plans(setting: Setting, plan: Planner = assign) -> BySide:
    minibatches = draw_minibatches(setting)
    return {side: [plan(setting, name, minibatches).schedules for name in names] for side, names in BALANCERS.items()}


def lead(setting: Setting, known: BySide | None = None) -> float | None:
    """How many times as fast on-demand is as the best without it, of what fits; None where nothing of a side does.
    The plans are known where only transfers differ."""
    memory, seconds = setting.cost.cluster.memory_bytes, []
    for side, every in (plans(setting) if known is None else known).items():
        cost = room.under(setting.cost, side)
        needs = [room.needed(cost, max(s.fullest for s in plan), setting.trace.longest).total for plan in every]
        fitting = [plan for plan, need in zip(every, needs, strict=True) if not memory or need <= memory]
        spans = [simulation.makespans(plan, cost, seed=setting.seed) for plan in fitting]
        seconds.append(min((float(of.sum()) for of in spans), default=None))
    met, apart = seconds
    return None if met is None or apart is None else met / apart


def draw(factor: Factor, lead_at: Callable[[Any], float | None]) -> Curve:
    spots = []
    for value, given in factor.values:
        try:
            found = lead_at(given)
        except InputError:
            found = None  # such as a trace too short for so many samples
        spots.append(Spot(float(value), factor.text(value), found))
    return Curve(factor.name, factor.unit, factor.text(factor.here), tuple(spots), factor.whole)


def factors(question: Question, usual: Setting) -> list[Factor]:
    """What is changed, one thing at a time."""
    cost, trace, gpus, share = usual.cost, question.trace, usual.cost.cluster.gpus, usual.minibatch
    family = question.model.lower().rpartition("-")[0]
    models = [name for name in catalog.model_names() if family and name.rpartition("-")[0] == family]
    sizes = sorted((catalog.model(name).parameters / 1e9, name) for name in models)
    traces = [stretch(trace, power) for power in POWERS]
    profile, constant = cost.profile, cost.profile.overhead + cost.profile.microbatch
    costs = {constant: cost}
    for seconds in {*OVERHEADS} - {constant}:
        below = replace(profile.below, microbatch=seconds)
        costs[seconds] = replace(cost, profile=replace(profile, overhead=0.0, microbatch=seconds, below=below))
    return [
        network(usual),
        Factor("devices", "", gpus, str, [(n, {"devices": n}) for n in sorted({*DEVICES, gpus})], whole=True),
        Factor(
            "model size", "B parameters", cost.model.parameters / 1e9, "{:.1f}".format,
            [(size, {"model": name}) for size, name in sizes if len(sizes) >= 3 and not question.profile],
        ),
        Factor(
            "minibatch", "samples per device", share, str,
            [(k, {"minibatch": k, "global_batch": None}) for k in sorted({*MINIBATCH, share})], whole=True,
        ),
        Factor(
            "length variation", "(deviation / mean)", cv(trace), "{:.2f}".format,
            [(cv(other), {"trace": other}) for other in traces],
        ),
        Factor(
            "fixed cost of a microbatch", "ms", constant, lambda seconds: f"{1000 * seconds:g}", sorted(costs.items())
        ),
    ]  # fmt: skip


def network(setting: Setting) -> Factor:
    """Between nodes; of one node its links. Nothing to change where nothing is sent, or sending takes no time."""
    cluster = setting.cost.cluster
    several = cluster.nodes > 1
    rate, bits = (cluster.nic_bandwidth, 8) if several else (cluster.link_bandwidth, 1)
    values = []
    for times in TIMES if cluster.gpus > 1 and np.isfinite(rate) else ():
        at = times * rate
        other = replace(cluster, nic_bandwidth=at) if several else replace(cluster, link_bandwidth=at)
        values.append((round(rate * times * bits / 1e9), replace(setting.cost, cluster=other)))
    name, unit = ("network", "Gb/s per GPU") if several else ("links in a node", "GB/s")
    return Factor(name, unit, rate * bits / 1e9, "{:.0f}".format, values)


def stretch(trace: Trace, power: float) -> Trace:
    """Lengths of about the same mean, whose distances from it are stretched or shrunk; none is longer than twice the
    longest."""
    raw = (trace.lengths / trace.mean) ** power
    lengths = raw * trace.mean / np.average(raw, weights=trace.counts)
    return replace(trace, lengths=np.clip(np.rint(lengths), 1, 2 * trace.longest).astype(np.int64), loss=None)


def cv(trace: Trace) -> float:
    """The coefficient of variation."""
    deviation = np.sqrt(np.average((trace.lengths - trace.mean) ** 2, weights=trace.counts))
    return float(deviation / trace.mean)


def regrets(setting: Setting) -> tuple[Regret, ...]:
    """What it costs to balance by the wrong weights: plans made by other people's costs, run at the true ones."""
    minibatches, found = draw_minibatches(setting), []
    right = side_seconds(setting, minibatches)
    for name, (linear, quadratic) in WEIGHTS.items():
        some = []
        for one in minibatches:
            lengths = one.lengths.astype(np.float64)
            some.append(replace(one, linear=linear * lengths, quadratic=quadratic * lengths**2))
        wrong = side_seconds(setting, some)
        found.append(Regret(name, {side: wrong[side] / right[side] for side in SIDES}))
    return tuple(found)


def side_seconds(setting: Setting, minibatches: Sequence[Drawn]) -> dict[str, float]:
    """Seconds of each side, balanced by these weights alone: to simulate both of sorted-slice's deals would tell it
    the true seconds."""
    seconds = {}
    for side in SIDES:
        plan = assign(setting, standing_for(side)[0], minibatches, exactly=False)
        seconds[side] = float(simulation.makespans(plan.schedules, room.under(setting.cost, side)).sum())
    return seconds
