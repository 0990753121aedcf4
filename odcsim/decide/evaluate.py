"""What (balancer, sync) pairs come to: the one place that turns schedules into rows.

Whatever prints a row has it from here: the same way to run the same question has the same seconds, dollars and memory,
whoever asks. What only narrows a choice (`executors/quick`, makespans of a few minibatches) is screening, and prints
none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from odcsim import balance
from odcsim.catalog.estimates import compute
from odcsim.decide import room
from odcsim.decide.room import RIVAL
from odcsim.decide.setting import Drawn, Setting, assign, drawn
from odcsim.errors import InputError
from odcsim.executors import simulation
from odcsim.executors.simulation import GROUP, Simulation
from odcsim.results import summary
from odcsim.results.intervals import Draws, draws
from odcsim.results.metrics import Usage
from odcsim.results.summary import Measured, Row
from odcsim.schedule import Schedule, ScheduleFile

FULL = {"sharding": "full", "far": "each"}  # every device moves all it needs from and to all others, each time
EACH = 8  # samples of a plan that take as much memory as its devices do in a simulation, about
Pair = tuple[str, str]  # (balancer, sync)
Planner = Callable[[Setting, str, Sequence[Drawn]], ScheduleFile]  # a balancer's schedules of drawn minibatches


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rows of a setting, each by itself, with the seconds of every minibatch under it."""

    setting: Setting
    rows: tuple[Row, ...]
    usages: tuple[Usage, ...] = field(repr=False)
    draws: Draws = field(repr=False)
    memory_limit: float | None = None  # bytes of one GPU, where known

    @property
    def fidelity(self) -> str:
        """Of the seconds of all rows: of the least trusted."""
        return next((row.fidelity for row in self.rows if row.fidelity == "extrapolated"), self.rows[0].fidelity)

    def row(self, balancer: str, sync: str) -> Row:
        return self.rows[self.place(balancer, sync)]

    def usage(self, balancer: str, sync: str) -> Usage:
        """The seconds of each minibatch that a row sums up."""
        return self.usages[self.place(balancer, sync)]

    def place(self, balancer: str, sync: str) -> int:
        known = [row.pair for row in self.rows]
        if (balancer, sync) not in known:
            raise InputError(f"no row of {balancer} under {sync}", fix=f"there are {listed(known)}")
        return known.index((balancer, sync))


def listed(every: Sequence[Pair]) -> str:
    """(balancer, sync) in words: native (collective, deferred), lb-mini (on-demand)."""
    syncs = {balancer: [sync for other, sync in every if other == balancer] for balancer, _ in every}
    return ", ".join(f"{balancer} ({', '.join(of)})" for balancer, of in syncs.items())


def evaluate(
    setting: Setting,
    every: Sequence[Pair],
    *,
    memory_limit: float | None = None,
    beginnings: dict[str, ScheduleFile] | None = None,
    few: int = 0,
    plan: Planner = assign,
    advance: Callable[[], None] = lambda: None,
) -> Evaluation:
    """`memory_limit`: bytes of one GPU, unless what is known of it. The first `few` schedules of each plan are put into
    `beginnings`. `advance` is called once for each (balancer, sync) that is done."""
    limit = setting.cost.cluster.memory_bytes if memory_limit is None else memory_limit
    rows, usages, minibatches = [], [], drawn(setting)
    work, peak = flops(setting, minibatches), setting.cost.cluster.peak_flops
    ways = {sync: simulated(setting, sync) for _, sync in every}
    for some in _together(every, minibatches, setting.cost.cluster.devices):
        plans = {balancer: plan(setting, balancer, minibatches) for balancer in dict(some)}
        fully = {balancer: _fully(setting, plan, minibatches) for balancer, plan in plans.items()}
        about = {balancer: _about(setting, plan.schedules) for balancer, plan in plans.items()}
        for measured in _measured(plans, some, ways):
            balancer = measured.balancer
            fullest, known = about[balancer]
            row = summary.used(costed(setting, measured, fullest, limit), *work, measured.devices, peak)
            full = _over_full(measured, fully[balancer], ways[measured.recipe.sync])
            rows.append(replace(row, over_full=full, **known))
            usages.append(measured.usage)
            advance()
        if beginnings is not None:
            beginnings |= {name: replace(plan, schedules=plan.schedules[:few]) for name, plan in plans.items()}
        del plans, fully  # before the next ones are made
    return Evaluation(setting, tuple(rows), tuple(usages), of_samples(setting, minibatches), limit)


def simulated(setting: Setting, sync: str) -> Simulation:
    """How a sync is run: collectives of nodes exchange as FSDP2's do, which is the rival at its best."""
    return Simulation(setting.cost, sync, setting.executor, seed=setting.seed, exchange=RIVAL)


def _about(setting: Setting, schedules: Sequence[Schedule]) -> tuple[int, dict[str, Any]]:
    """Tokens of a plan's fullest microbatch, and what a row tells of the plan, whichever sync runs it."""
    counts = [sum(schedule.microbatches) + len(schedule.queue) for schedule in schedules]
    mean = sum(counts) / len(counts) / setting.cost.cluster.devices
    known = {"microbatches": mean, "fidelity": simulation.fidelity(setting.cost, schedules)}
    return max(schedule.fullest for schedule in schedules), known


def costed(setting: Setting, measured: Measured, tokens: int, limit: float | None) -> Row:
    """The row with what it costs, and the memory that its fullest microbatch needs, which holds so many tokens."""
    row = summary.row(measured, setting.cost.profile.low, setting.cost.profile.high, setting.price)
    found = room.needed(room.under(setting.cost, row.sync), tokens, setting.trace.longest)
    fits = None if limit is None else found.total <= limit
    return replace(row, memory_bytes=found.total, memory_fits=fits, memory_limit=limit, memory_terms=found.terms)


def _together(every: Sequence[Pair], minibatches: Sequence[Drawn], devices: int) -> Iterator[list[Pair]]:
    """The pairs of as many balancers as are simulated at once: plans of thousands of devices fill gigabytes."""
    samples = len(minibatches[0].lengths)
    count = max(1, GROUP // (len(minibatches) * max(devices, samples // EACH)))
    names = list(dict.fromkeys(balancer for balancer, _ in every))
    for first in range(0, len(names), count):
        some = names[first : first + count]
        yield [pair for pair in every if pair[0] in some]


def _measured(
    plans: Mapping[str, ScheduleFile], some: Sequence[Pair], ways: Mapping[str, Simulation]
) -> list[Measured]:
    """Each of the pairs; those of a sync are simulated together."""
    usages: dict[Pair, Usage] = {}
    for sync, way in ways.items():
        names = [balancer for balancer, other in some if other == sync]
        found = simulation.usages([plans[name].schedules for name in names], way)
        usages |= {(name, sync): usage for name, usage in zip(names, found, strict=True)}
    return [measured_of(pair[0], plans[pair[0]].schedules, ways[pair[1]], usages[pair]) for pair in some]


def of_samples(setting: Setting, minibatches: Sequence[Drawn]) -> Draws:
    """What the minibatches have in common, of which the intervals have to know."""
    ids = [np.array(m.unassigned.samples) for m in minibatches]
    return draws(ids, [m.weights for m in minibatches], setting.trace.size, whole=setting.whole)


def flops(setting: Setting, minibatches: Sequence[Drawn]) -> tuple[float, float]:
    """Of the model on all samples, and of what is computed again."""
    model, recipe = setting.cost.model, setting.cost.recipe
    tokens = float(sum(m.lengths.sum() for m in minibatches))
    squares = float(sum(model.squares(m.lengths).sum() for m in minibatches))
    return compute.flops(model, recipe, tokens, squares)


def measure(file: ScheduleFile, how: Simulation) -> Measured:
    """One (balancer, sync), measured."""
    return measured_of(file.header.balancer, file.schedules, how)


def measured_of(name: str, schedules: Sequence[Schedule], how: Simulation, usage: Usage | None = None) -> Measured:
    """Schedules by whoever made them. `usage`, where it is known."""
    samples, tokens = simulation.carried(schedules)
    usage = simulation.usage(schedules, how) if usage is None else usage
    return Measured(name, how.cost.ran, usage, samples, tokens, how.cost.cluster.devices)


def _fully(setting: Setting, plan: ScheduleFile, minibatches: Sequence[Drawn]) -> ScheduleFile:
    """The plan for full sharding, where it is another."""
    balancer = plan.header.balancer
    if setting.cost.sharded == "full" or not balance.named(balancer).weighs_transfers:
        return plan
    return assign(replace(setting, cost=setting.cost.by(**FULL)), balancer, minibatches)


def _over_full(measured: Measured, file: ScheduleFile, how: Simulation) -> float | None:
    """How many times as fast as under full sharding with the plans for that, where there is a difference."""
    if how.cost.sharded == "full":
        return None
    full = simulation.makespans(file.schedules, replace(how, cost=how.cost.by(**FULL)))
    seconds = float(measured.usage.makespan.sum())
    return float(full.sum()) / seconds if seconds else None
