"""Every balancer under every sync that can run it, on the same minibatches: balance, simulate, compare."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from odcsim import balance
from odcsim.checked import shown
from odcsim.errors import InputError
from odcsim.estimates import compute, memory
from odcsim.executors import simulation
from odcsim.executors.simulation import GROUP, Simulation
from odcsim.program import SYNCS
from odcsim.questions import examples
from odcsim.questions.ends import FEW, Ends, Pair, ends
from odcsim.questions.setting import Drawn, Setting, assign, drawn
from odcsim.results import summary
from odcsim.results.intervals import Draws, draws
from odcsim.results.metrics import Usage
from odcsim.results.summary import Measured, Row
from odcsim.schedule import ScheduleFile
from odcsim.timeline import Timeline

FULL = {"sharding": "full", "far": "each"}  # every device moves all it needs from and to all others, each time
EACH = 8  # samples of a plan that take as much memory as its devices do in a simulation, about
RIVAL = "layers"  # nodes exchange as FSDP2's collectives do under hybrid sharding, which is the rival at its best


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows, what they answer, and how far their seconds can be trusted."""

    setting: Setting
    executor: str
    fidelity: str
    rows: tuple[Row, ...]
    usages: tuple[Usage, ...] = field(repr=False)
    price: float | None = None
    memory_limit: float | None = None  # bytes of one GPU, where known
    ends: Ends | None = field(default=None, repr=False)  # where seconds come with an interval

    def row(self, balancer: str, sync: str) -> Row:
        return self.rows[self._place(balancer, sync)]

    def usage(self, balancer: str, sync: str) -> Usage:
        """The seconds of each minibatch that a row sums up."""
        return self.usages[self._place(balancer, sync)]

    def _place(self, balancer: str, sync: str) -> int:
        known = [row.pair for row in self.rows]
        if (balancer, sync) not in known:
            raise InputError(f"no row of {balancer} under {sync}", fix=f"there are {_listed(known)}")
        return known.index((balancer, sync))

    def clearest(self, before: Pair, after: Pair) -> int:
        """The minibatch in which the second (balancer, sync) gains most over the first."""
        return examples.clearest(*(self.usage(*pair) for pair in (before, after)))

    def typical(self, *rows: Pair) -> int:
        """The minibatch whose idle is nearest to the table's under each (balancer, sync)."""
        return examples.typical([self.usage(*pair) for pair in rows])

    def timeline(self, balancer: str, sync: str, minibatch: int) -> Timeline:
        """One minibatch of a row, device by device: its number in the timeline is 0."""
        self._place(balancer, sync)
        if not 0 <= minibatch < self.setting.minibatches:
            raise InputError(f"no minibatch {minibatch}", fix=f"there are 0 to {self.setting.minibatches - 1}")
        file = assign(self.setting, balancer, [drawn(self.setting)[minibatch]]).sealed()
        cost = self.setting.cost
        how = Simulation(cost, sync, self.executor, seed=self.setting.seed, exchange=RIVAL)
        return simulation.simulate(file, how)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "inputs": inputs(self),
            "fidelity": self.fidelity,
            "rows": [r.as_json() for r in self.rows],
        }


def pairs(setting: Setting | None = None) -> list[tuple[str, str]]:
    """Every (balancer, sync) that can run; and splitting outliers, where the setting says what that costs."""
    split = setting is not None and setting.split_overhead is not None
    names = [balancer.name for balancer in balance.BALANCERS if split or not balancer.gangs]
    names += [balancer.name for balancer in balance.FIELD] if setting is not None and setting.field else []
    return [(name, sync) for name in names for sync in SYNCS if balance.runs_with(name, sync)]


def _listed(every: Sequence[Pair]) -> str:
    """(balancer, sync) in words: native (collective, deferred), lb-mini (on-demand)."""
    syncs = {balancer: [sync for other, sync in every if other == balancer] for balancer, _ in every}
    return ", ".join(f"{balancer} ({', '.join(of)})" for balancer, of in syncs.items())


def _check_among(among: Sequence[Pair], setting: Setting) -> None:
    """All of them can run, and what their figures compare with is among them."""
    known = pairs(setting)
    if odd := [pair for pair in among if pair not in known]:
        raise InputError(f"among holds {shown(odd[0])}", fix=f"give (balancer, sync) of {_listed(known)}")
    syncs = dict.fromkeys([summary.REFERENCE[1], *(sync for _, sync in among)]) if among else {}
    if missing := [sync for sync in syncs if (summary.REFERENCE[0], sync) not in among]:
        pair = summary.REFERENCE[0], missing[0]
        raise InputError(f"among lacks {shown(pair)}, with which the others are compared", fix="add it")


def compare(
    setting: Setting,
    *,
    executor: str = "analytic",
    price: float | None = None,
    memory_limit: float | None = None,
    among: Sequence[Pair] = (),
    advance: Callable[[], None] = lambda: None,
) -> Comparison:
    """`price` of a GPU-hour, unless the setting's; `memory_limit`: bytes of one GPU, unless what is known of it;
    `among`: these (balancer, sync) alone, without a word on the ends of the seconds' interval, which takes longest;
    lb-micro is one of them, under collective and under each sync of the others.
    `advance` is called once for each (balancer, sync) that is done."""
    _check_among(among, setting)
    price = setting.price if price is None else price
    memory_limit = setting.cost.cluster.memory_bytes if memory_limit is None else memory_limit
    few: dict[str, ScheduleFile] = {}  # the beginning of each plan, which is all that the ends run
    rows, usages, minibatches, fidelity = [], [], drawn(setting), setting.cost.profile.fidelity
    profile, work = setting.cost.profile, flops(setting, minibatches)
    every = among or pairs(setting)
    ways = {sync: Simulation(setting.cost, sync, executor, seed=setting.seed, exchange=RIVAL) for _, sync in every}
    for some in _together(every, minibatches, setting.cost.cluster.devices):
        plans = {balancer: assign(setting, balancer, minibatches) for balancer in dict(some)}
        fully = {balancer: _fully(setting, plan, minibatches) for balancer, plan in plans.items()}
        largest = {balancer: max(s.fullest for s in plan.schedules) for balancer, plan in plans.items()}
        for measured in _measured(plans, some, ways):
            balancer, way = measured.balancer, ways[measured.recipe.sync]
            row = summary.row(measured, profile.low, profile.high, price)
            row = summary.used(row, *work, measured.devices, setting.cost.cluster.peak_flops)
            row = replace(row, over_full=_over_full(measured, fully[balancer], way))
            rows.append(_with_memory(row, setting, largest[balancer], memory_limit))
            usages.append(measured.usage)
            advance()
        if "native" in plans:
            fidelity = simulation.fidelity(setting.cost, plans["native"].schedules)
        few |= {balancer: replace(plan, schedules=plan.schedules[:FEW]) for balancer, plan in plans.items()}
        del plans, fully  # before the next ones are made
    compared = summary.compared(rows, [u.makespan for u in usages], of_samples(setting, minibatches))
    interval = None if among else ends(setting, few, {r.pair: r.recipe for r in compared})
    return Comparison(setting, executor, fidelity, compared, tuple(usages), price, memory_limit, interval)


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
    return [_told(plans[balancer], ways[sync], usages[balancer, sync]) for balancer, sync in some]


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
    return _told(file, how, simulation.usage(file.schedules, how))


def _told(file: ScheduleFile, how: Simulation, usage: Usage) -> Measured:
    samples, tokens = simulation.carried(file.schedules)
    return Measured(file.header.balancer, how.cost.ran, usage, samples, tokens, file.header.devices)


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


def _with_memory(row: Row, setting: Setting, tokens: int, limit: float | None) -> Row:
    """`tokens` of the largest microbatch."""
    cost, longest = setting.cost, min(tokens, setting.trace.longest)
    holders = cost.by(sync=row.sync).holders
    found = memory.estimate(cost.model, cost.cluster.devices, tokens, row.recipe, holders, longest)
    fits = None if limit is None else found.total <= limit
    return replace(row, memory_bytes=found.total, memory_fits=fits, memory_terms=found.terms)


def inputs(comparison: Comparison) -> dict[str, Any]:
    """What was asked, in the words of the command line."""
    setting, cluster = comparison.setting, comparison.setting.cost.cluster
    return {
        "trace": setting.trace.name,
        "trace_samples": setting.trace.size,
        "trace_origin": setting.trace.origin,
        "model": setting.cost.model.name,
        "gpu": setting.cost.profile.gpu,
        "cost": setting.cost.profile.origin,
        "devices": cluster.devices,
        "devices_per_node": cluster.devices_per_node,
        "minibatch": setting.minibatch,
        "max_tokens": setting.limit,
        "minibatches": setting.minibatches,
        "seed": setting.seed,
        "in_order": setting.in_order,
        "whole": setting.whole,
        "split_overhead": setting.split_overhead,
        **setting.cost.recipe.inputs(),
        "price": comparison.price,
        "executor": comparison.executor,
    }
