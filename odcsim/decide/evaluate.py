"""What (balancer, sync) pairs come to: the one place that turns schedules into rows.

Whatever prints a row has it from here: the same way to run the same question has the same seconds, dollars and memory,
whoever asks. What only narrows a choice (makespans of a few minibatches) is screening, and prints none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from odcsim import neighbours
from odcsim.catalog.estimates import compute
from odcsim.cost import Cost, Load
from odcsim.decide import room
from odcsim.decide.setting import Drawn, Setting, assign, draw_minibatch
from odcsim.decide.way import Way
from odcsim.errors import InputError, misspelled
from odcsim.executors import simulation
from odcsim.executors.simulation import GROUP
from odcsim.results import metrics, summary
from odcsim.results.intervals import LOOKED_AT, Draws, draws
from odcsim.results.metrics import Usage
from odcsim.results.summary import Made, Row
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.timeline import Floats, Ints
from odcsim.trace import DPO, Trace

FULL = {"sharding": "full", "far": "each"}  # every device moves all it needs from and to all others, each time
HEAD = 1 / 3  # of the head's seconds that are its forward's
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
        return least_trusted(row.fidelity for row in self.rows)

    def row(self, balancer: str, sync: str) -> Row:
        return self.rows[self.place(balancer, sync)]

    def usage(self, balancer: str, sync: str) -> Usage:
        """The seconds of each minibatch that a row sums up."""
        return self.usages[self.place(balancer, sync)]

    def place(self, balancer: str, sync: str) -> int:
        known = [row.pair for row in self.rows]
        if (balancer, sync) in known:
            return known.index((balancer, sync))
        syncs = [one for other, one in known if other == balancer]
        fix = f"{balancer} runs under {' or '.join(syncs)}" if syncs else f"there are {listed(known)}"
        for name, names in ((sync, syncs), (balancer, [one for one, _ in known])):  # which name is written wrongly
            fix = (misspelled(str(name), names, alike=0.6) if name not in names else "") or fix
        raise InputError(f"no row of {balancer!s:.40} under {sync!s:.40}", fix=fix)


def least_trusted(every: Iterable[str]) -> str:
    """`extrapolated` where any of them is, else what they are: the catalogue's where all are below a fit."""
    known = list(every)
    first = next((one for one in known if one != "catalogue"), "catalogue")
    return "extrapolated" if "extrapolated" in known else first


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
    cost, workers, trace, ids = setting.cost, setting.cost.workers, setting.trace, setting.draw()
    limit = cost.cluster.memory_bytes if memory_limit is None else memory_limit
    costs = {sync: room.under(cost, sync) for _, sync in every}
    names = list(dict.fromkeys(balancer for balancer, _ in every))
    parts: dict[Pair, list[_Chunk]] = {pair: [] for pair in every}
    tokens, squares, weights, done = list[int](), list[float](), list[Floats](), 0
    stride = max(1, GROUP // workers)
    groups = -(-len(ids) // stride)
    for first in range(0, len(ids), stride):  # all at once fill gigabytes
        minibatches = [draw_minibatch(setting, one) for one in ids[first : first + stride]]
        tokens += [int(one.lengths.sum()) for one in minibatches]
        squares += [float(cost.model.squares(one.lengths).sum()) for one in minibatches]
        weights += [one.weights for one in minibatches]
        # So many balancers at once: plans of thousands of devices fill gigabytes, too.
        count = max(1, GROUP // (len(minibatches) * max(workers, len(minibatches[0].lengths) // EACH)))
        for few_names in (names[at : at + count] for at in range(0, len(names), count)):
            plans = {balancer: plan(setting, balancer, minibatches) for balancer in few_names}
            some = [pair for pair in every if pair[0] in plans]
            for pair, part in _run(setting, plans, some, minibatches, costs, first):
                parts[pair].append(part)
                done += 1
                if done % groups == 0:  # as often in all as there are pairs
                    advance()
            if beginnings is not None:
                for name, file in plans.items():
                    known = beginnings[name].schedules if name in beginnings else ()
                    beginnings[name] = replace(file, schedules=(*known, *file.schedules)[:few])
            del plans  # before the next ones are made
    carried = np.array([len(one) for one in ids], dtype=np.int64), np.array(tokens, dtype=np.int64)
    rows, usages, busy = list[Row](), list[Usage](), _busy(weights, workers)
    for (balancer, sync), pieces in parts.items():
        usage, way = metrics.join([piece.usage for piece in pieces]), Way(setting, balancer, sync)
        most = max(piece.fullest for piece in pieces), trace.longest
        row = costed(costs[sync], balancer, usage, carried, most, limit, setting.price, sum(squares))
        full, seconds = [piece.full for piece in pieces if piece.full is not None], row.makespan_seconds
        own = None
        if way.rule:  # what a trainer's own way takes from its settings
            samples, size = float(way.samples), setting.batch * trace.bundles.mean
            own = Made(setting.limit, setting.minibatch, setting.each, samples, size)
        rows.append(
            replace(
                row,
                microbatches=sum(piece.microbatches for piece in pieces) / len(ids) / workers,
                busy=busy,
                fidelity=least_trusted(piece.fidelity for piece in pieces),
                over_full=float(np.concatenate(full).sum()) / seconds if full and seconds else None,
                made=own,
                reference_seconds=sum(piece.reference for piece in pieces),
            )
        )
        usages.append(usage)
    return Evaluation(setting, tuple(rows), tuple(usages), _draws(setting, ids, weights), limit)


def _busy(weights: Sequence[Floats], workers: int) -> float | None:
    """Devices that so heavy samples of minibatches keep busy at most, all of them together."""
    least = sum(max(float(of.max()), float(of.sum()) / workers) for of in weights)
    return sum(float(of.sum()) for of in weights) / least if least else None


def _draws(setting: Setting, ids: Sequence[Ints], weights: Sequence[Floats]) -> Draws:
    """Which samples were drawn, and what they weigh: of bundles, the first sample stands for all."""
    trace = setting.trace
    dealt = [each[trace.starts(each)] for each in ids]
    kin = None if trace.prompts is None else [trace.prompts[each] for each in dealt]
    if trace.bundle is not None:
        dealt = [np.searchsorted(trace.starts(np.arange(trace.size)), each) for each in dealt]
    file, siblings = in_file(trace, setting.cost), trace.siblings
    return draws(
        dealt,
        weights,
        trace.bundles.size,
        kin=kin,
        file=file,
        siblings=siblings,
        whole=setting.whole,
        together=max(1, -(-setting.alike // setting.batch)),
    )


def in_file(trace: Trace, cost: Cost) -> Floats | None:
    """The work of what is dealt, in the order of the file, as far as it is looked at for runs; None where a table has
    no order, or prompts are known."""
    if trace.counts is not None or trace.group is not None:
        return None
    work = np.sum(cost.sample_parts(trace.lengths[:LOOKED_AT]), axis=0)
    return work if trace.bundle is None else np.add.reduceat(work, trace.starts(np.arange(len(work))))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What some minibatches come to under one (balancer, sync)."""

    usage: Usage
    fullest: int  # tokens of the fullest microbatch
    microbatches: int  # of all devices
    fidelity: str
    full: Floats | None  # makespans under full sharding with the plans for that, where it differs
    reference: float  # seconds of a pass of the reference model, of pairs


def _run(
    setting: Setting,
    plans: Mapping[str, ScheduleFile],
    some: Sequence[Pair],
    minibatches: Sequence[Drawn],
    costs: Mapping[str, Cost],
    first: int,
) -> Iterator[tuple[Pair, _Chunk]]:
    """Each of the pairs; those of a sync are simulated together."""
    usages, fully = dict[Pair, Usage](), dict[str, ScheduleFile]()
    for sync, cost in costs.items():
        names = [balancer for balancer, other in some if other == sync]
        together = simulation.usages([plans[name].schedules for name in names], cost, seed=setting.seed, first=first)
        usages |= {(name, sync): usage for name, usage in zip(names, together, strict=True)}
    about = {balancer: _about(setting.cost, plan.schedules) for balancer, plan in plans.items()}
    for balancer, sync in some:
        cost, full = costs[sync], None
        if cost.sharded != "full":
            if balancer not in fully:
                other = replace(setting, cost=setting.cost.by(**FULL))
                anew = neighbours.named(balancer).weighs_transfers
                fully[balancer] = assign(other, balancer, minibatches) if anew else plans[balancer]
            full = simulation.makespans(fully[balancer].schedules, cost.by(**FULL), seed=setting.seed, first=first)
        fullest, microbatches, fidelity = about[balancer]
        pairs = setting.trace.kind == DPO
        reference = float(forward(cost, plans[balancer].schedules).sum()) if pairs else 0.0
        yield (balancer, sync), _Chunk(usages[balancer, sync], fullest, microbatches, fidelity, full, reference)


def forward(cost: Cost, schedules: Sequence[Schedule], updates: int = 1) -> Floats:
    """Seconds of one pass without backward over each step, in the microbatches that it trains on.

    Where devices meet, the slowest sets the pace of each microbatch; on demand only that of the step.
    """
    alone, profile = cost.recipe.one_sided, cost.profile
    transfers = cost.transfers(alone)
    # A microbatch's constant is that of its training.
    bare = replace(cost, profile=replace(profile, microbatch=0.0, below=replace(profile.below, microbatch=0.0)))
    seconds = np.zeros((len(schedules), cost.workers if alone else 1))
    for number, schedule in enumerate(schedules):
        load = Load.of(cost.model, [schedule])
        compute, count = bare.compute(load), len(load.tokens)
        layer, embed, head = (
            np.concatenate([compute(what, m) for m in range(count)]) for what in ("forward", "embed", "head")
        )
        layer = np.maximum(layer, transfers["gather layer"])  # a layer takes as long as its gather where that is longer
        every = cost.model.layers * layer + embed + HEAD * head + transfers["gather root"]
        every[np.arange(count)[:, None] >= load.counts] = 0.0  # a device has no such microbatch
        seconds[number] = every.sum(axis=0) if alone else every.max(axis=1).sum()
    steps: Floats = seconds.reshape(-1, updates, seconds.shape[1]).sum(axis=1).max(axis=1)
    return steps


def of_file(file: ScheduleFile, cost: Cost, usage: Usage) -> Row:
    """The row of a file's schedules, which came to this. What needs other rows or a price is not in it."""
    schedules = file.schedules
    fullest, microbatches, fidelity = _about(cost, schedules)
    most = fullest, max(int(schedule.sizes.max()) for schedule in schedules)
    squares = sum(float(cost.model.squares(schedule.sizes).sum()) for schedule in schedules)
    limit, carried = cost.cluster.memory_bytes, simulation.carried(schedules)
    row = costed(cost, file.header.balancer, usage, carried, most, limit, squares=squares)
    return replace(row, microbatches=microbatches / len(schedules) / cost.workers, fidelity=fidelity)


def _about(cost: Cost, schedules: Sequence[Schedule]) -> tuple[int, int, str]:
    """Tokens of the fullest microbatch, microbatches and fidelity, whichever sync runs the schedules."""
    counts = [len(schedule.flat.sizes) + schedule.queued for schedule in schedules]
    fullest = max(schedule.fullest for schedule in schedules)
    return fullest, sum(counts), simulation.fidelity(cost, schedules)


def costed(
    cost: Cost,
    balancer: str,
    usage: Usage,
    carried: tuple[Ints, Ints],
    most: tuple[int, int],
    limit: float | None,
    price: float | None = None,
    squares: float | None = None,
) -> Row:
    """The row of minibatches that `carried` so many samples and tokens, with what it costs, and the memory that it
    needs. `most`: tokens of its fullest microbatch, and of the longest sample. `squares`: of all lengths, for the FLOPs
    that devices reach."""
    row = summary.row(cost, balancer, usage, carried, price)
    fullest, longest = most
    memory = room.needed(cost, fullest, longest)
    fits = None if limit is None else memory.total <= limit
    row = replace(row, memory_bytes=memory.total, memory_fits=fits, memory_limit=limit, memory_terms=memory.terms)
    spent, peak = row.makespan_seconds * cost.cluster.gpus, cost.cluster.peak_flops
    if squares is None or not spent:
        return row
    flops, again = compute.flops(cost.model, cost.recipe, float(carried[1].sum()), squares)  # with what is run again
    mfu, hfu = (work / (peak * spent) if peak else None for work in (flops, flops + again))
    return replace(row, tflops_per_device=flops / spent / 1e12, mfu=mfu, hfu=hfu)
