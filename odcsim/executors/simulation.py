"""Run schedules through an executor: all of them to a timeline, or group by group to the usage alone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.cost import Cost, Load
from odcsim.errors import InputError, nearest
from odcsim.executors import analytic, taking
from odcsim.program import Program, check_counts, sync_named
from odcsim.recipe import Recipe
from odcsim.results import metrics
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.support.checked import expect
from odcsim.timeline import About, Block, Floats, Ints, Timeline, padded, shortened

EXECUTORS = ("analytic", "des")
GROUP = 8192  # minibatches x devices at once where only their usage is wanted: their rows stay in the cache


@dataclass(frozen=True, slots=True, init=False)
class Simulation:
    """How to run: by whose seconds and which recipe, with which executor."""

    cost: Cost
    executor: str
    seed: int
    first: int  # the number of the first minibatch: what is drawn for one goes by its number

    def __init__(
        self,
        cost: Cost,
        sync: str | None = None,
        executor: str | None = None,
        *,
        seed: int = 0,
        first: int = 0,
        **choices: Any,
    ) -> None:
        """`sync` and `choices`: of the recipe, where they differ from the cost's. `executor`: the scan, and discrete
        events where links are shared or something is drawn, unless somebody compares them."""
        choices |= {} if sync is None else {"sync": sync}
        executor = executor or ("des" if cost.cluster.eventful else "analytic")
        values = {"cost": cost.by(**choices), "executor": executor, "seed": seed, "first": first}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def recipe(self) -> Recipe:
        return self.cost.recipe

    @property
    def sync(self) -> str:
        return self.recipe.sync

    def check(self, schedules: Sequence[Schedule]) -> None:
        """Refuse what would hang, and what this executor cannot answer."""
        if self.executor not in EXECUTORS:
            raise InputError(f"unknown executor '{self.executor}'", fix=nearest(self.executor, list(EXECUTORS)))
        cluster = self.cost.cluster
        if self.executor == "analytic" and cluster.shared_links:
            nics = f"{cluster.nics_per_node} NICs for {cluster.devices_per_node} devices in a node"
            raise InputError(f"the analytic executor cannot share links ({nics})", fix="name no executor")
        for drawn in ("jitter", "swing"):
            if self.executor == "analytic" and getattr(cluster, drawn):
                raise InputError(f"the analytic executor draws no {drawn}", fix="name no executor")
        meet = not sync_named(self.sync).uneven
        for number, schedule in enumerate(schedules, self.first):
            if (devices := len(schedule.flat.counts)) != self.cost.workers:
                raise InputError(f"schedule for {devices} devices on a cluster of {self.cost.workers}")
            if meet and schedule.uneven:
                check_counts(self.sync, schedule.microbatches, schedule.queued, where=f"minibatch {number}")

    def rngs(self, numbers: Iterable[int]) -> list[np.random.Generator]:
        """What jitter is drawn from: a generator for each minibatch, whatever it is simulated with."""
        return [np.random.default_rng([self.seed, n]) for n in numbers]


def simulate(file: ScheduleFile, simulation: Simulation) -> Timeline:
    """Every span of every minibatch."""
    expect(file, ScheduleFile, "schedules", "odcsim.plan")
    expect(simulation, Simulation, "simulation", "odcsim.Simulation")
    cost, header = simulation.cost, file.header
    about = About(
        executor=simulation.executor,
        recipe=cost.ran,
        balancer=header.balancer,
        model=cost.model.name,
        digest=header.digest,
        fidelity=fidelity(cost, file.schedules),
        hardware=cost.profile.gpu,
        emulated=True,
        devices=cost.workers,
        max_tokens=header.max_tokens,
        trace=header.trace,
        nodes=cost.cluster.gpus // cost.holders,
    )
    simulation.check(file.schedules)
    blocks = tuple(_execute(group, simulation) for group in _groups(file.schedules, simulation, None))
    return Timeline(about, blocks, *carried(file.schedules))


def usage(schedules: Sequence[Schedule], simulation: Simulation) -> metrics.Usage:
    """What `metrics.usage(simulate(...))` says, without ever holding the spans of more than a group."""
    return usages([schedules], simulation)[0]


def usages(plans: Sequence[Sequence[Schedule]], simulation: Simulation) -> list[metrics.Usage]:
    """Of several plans of the same minibatches, which are simulated at once where their shapes are alike."""
    if not plans:
        return []
    for schedules in plans:
        simulation.check(schedules)
    every, count = list(chain(*plans)), len(plans[0])
    groups = ((g.places, _usage_of(g, simulation)) for g in _groups(every, simulation, GROUP, count))
    return metrics.parted(metrics.assemble(groups, len(every)), len(plans))


def makespans(schedules: Sequence[Schedule], simulation: Simulation) -> Floats:
    """The makespans of that usage alone, which takes a third of its time."""
    simulation.check(schedules)
    spans = np.zeros(len(schedules))
    for group in _groups(schedules, simulation, GROUP):
        spans[group.places] = _makespans_of(group, simulation)
    return spans


def stretched(schedules: Sequence[Schedule], simulation: Simulation, factors: Sequence[float]) -> Floats:
    """Makespans [factor, minibatch] with all compute so many times as long, simulated together like several plans.

    Luck, jitter and swings of a minibatch are the same under every factor.
    """
    simulation.check(schedules)
    count, costs = len(schedules), [simulation.cost.stretched(factor) for factor in factors]
    spans = np.zeros(len(factors) * count)
    for group in _groups(list(schedules) * len(factors), simulation, GROUP, count, costs):
        spans[group.places] = _makespans_of(group, simulation)
    return spans.reshape(len(factors), count)


def carried(schedules: Sequence[Schedule]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Samples and tokens of each minibatch."""
    samples = np.array([len(s.lengths) for s in schedules], dtype=np.int64)
    return samples, np.array([s.sizes.sum() for s in schedules], dtype=np.int64)


def fidelity(cost: Cost, schedules: Sequence[Schedule]) -> str:
    """The profile's fidelity; `extrapolated` where a sample, a microbatch or the devices are beyond it, and `catalogue`
    where all microbatches are as empty as those that it has somebody else's seconds for."""
    profile = cost.profile
    longest = max(int(s.sizes.max()) for s in schedules)
    beyond = bool(profile.longest and longest > profile.longest) or not profile.measured_with(cost.cluster.gpus)
    empty = profile.fewest and not profile.joined and any(s.emptiest < profile.fewest for s in schedules)
    if beyond or empty or _too_full(profile.most_tokens, schedules):
        return "extrapolated"
    below = profile.joined and all(2 * s.fullest <= profile.fewest for s in schedules)
    return "catalogue" if below else profile.fidelity


def _too_full(most: int, schedules: Sequence[Schedule]) -> bool:
    """Whether a microbatch holds more than `most` tokens; no limit where that is 0."""
    return bool(most) and any(s.fullest > most for s in schedules)


@dataclass(frozen=True, slots=True)
class _Alike:
    """Minibatches that share a program, and their durations. `takers`: of shared queues, where the scan has told."""

    program: Program
    places: Ints  # in the row of schedules that was asked for
    minibatches: Ints  # their numbers
    schedules: tuple[Schedule, ...]
    costs: tuple[Cost, ...]  # by whose seconds each of them runs
    load: Load
    durations: Floats
    luck: list[Floats]
    takers: Ints | None = None

    @property
    def queued(self) -> bool:
        return bool(self.schedules[0].queued)


def _groups(
    schedules: Sequence[Schedule],
    simulation: Simulation,
    size: int | None,
    count: int = 0,
    costs: Sequence[Cost] = (),
) -> Iterator[_Alike]:
    """Group minibatches by their shape, at most `size` of their devices together. `count`: where numbers begin anew,
    and with them the next of the costs, where those are several.

    Where the scan tells who takes which entry of a queue, what comes of it is grouped anew; des runs queues itself.
    """
    count = count or len(schedules)
    for numbers in _alike(schedules, simulation, size):
        group = _group(numbers, [schedules[n] for n in numbers], simulation, count, costs)
        if simulation.executor != "analytic" or not group.queued:
            yield group
            continue
        takers = taking.take(group.program, group.durations, simulation.cost.program(1), _entries(group, simulation))
        realised = [s.realised(row[: s.queued]) for s, row in zip(group.schedules, takers, strict=True)]
        for places in _alike(realised, simulation, None):
            part = _group([numbers[i] for i in places], [realised[i] for i in places], simulation, count, costs)
            yield replace(part, takers=takers[places])


def _alike(schedules: Sequence[Schedule], simulation: Simulation, size: int | None) -> Iterator[list[int]]:
    groups: dict[tuple[int, bool], list[int]] = {}
    for number, schedule in enumerate(schedules):
        groups.setdefault((int(schedule.flat.counts.max()), bool(schedule.queued)), []).append(number)
    for _, numbers in sorted(groups.items()):
        stride = max(1, size // simulation.cost.workers) if size else len(numbers)
        for first in range(0, len(numbers), stride):
            yield numbers[first : first + stride]


def _group(
    places: list[int], schedules: Sequence[Schedule], simulation: Simulation, count: int, costs: Sequence[Cost]
) -> _Alike:
    cost, numbers = simulation.cost, [simulation.first + place % count for place in places]
    own = tuple(costs[place // count] if costs else cost for place in places)
    luck = cost.luck(schedules, numbers, simulation.seed)
    load = cost.load(schedules, luck)
    steps = simulation.cost.program(len(load.tokens))
    durations = _durations(steps, load, own)
    where, which = (np.array(of, dtype=np.int64) for of in (places, numbers))
    return _Alike(steps, where, which, tuple(schedules), own, load, durations, luck)


def _durations(program: Program, load: Load, costs: Sequence[Cost], among: Sequence[int] | None = None) -> Floats:
    """Seconds of each minibatch by its own cost; those of a cost stand beside each other."""
    pieces, first = [], 0
    for cost, of in groupby(costs):
        here = slice(first, first + sum(1 for _ in of))
        part = Load(load.tokens[:, here], load.squares[:, here], load.samples[:, here], load.counts[here])
        pieces.append(cost.durations(program, part, among))
        first = here.stop
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)


def _entries(group: _Alike, simulation: Simulation) -> taking.Queues:
    """The entries of the queues, and their seconds as microbatches of any device."""
    cost, entry = simulation.cost, simulation.cost.program(1)
    load = cost.load(group.schedules, group.luck, queues=True)
    counts = load.counts[:, 0]
    there = np.arange(len(load.tokens)) < counts[:, None]
    tokens, squares, samples = (of[:, :, 0].T[there][None, :, None] for of in (load.tokens, load.squares, load.samples))
    one = Load(tokens, squares, samples, np.ones((tokens.shape[1], 1), dtype=np.int64))
    slow = dict(cost.cluster.slow)
    factors = [slow.get(device, 1.0) for device in range(cost.workers)]
    _, alike, kinds = np.unique(factors, return_index=True, return_inverse=True)
    owners = list(chain.from_iterable(map(repeat, group.costs, counts.tolist())))
    seconds = _durations(entry, one, owners, alike.tolist())
    seconds[[step.duration for step in entry.steps[: entry.begin]]] = 0.0  # a device's first microbatch has waited
    return taking.Queues(counts.tolist(), seconds, kinds)


def _execute(group: _Alike, simulation: Simulation) -> Block:
    if simulation.executor == "analytic":
        asked, had = analytic.run(group.program, group.durations)
        return Block(group.program, group.minibatches, group.load.counts, asked, had, group.takers)
    from odcsim.executors import des  # SimPy loads only where it is used: sweeps start without it

    if group.queued:
        return _share(group, simulation)
    asked, had = des.run(group.program, group.durations, simulation.cost.cluster, simulation.rngs(group.minibatches))
    return Block(group.program, group.minibatches, group.load.counts, asked, had)


def _share(group: _Alike, simulation: Simulation) -> Block:
    """Run minibatches with queues. How long a program they need shows when they have run."""
    from odcsim.executors import des

    cluster = simulation.cost.cluster
    # Room for a device that takes twice its share.
    most = group.program.microbatches + 2 + 2 * max(s.queued for s in group.schedules) // simulation.cost.workers
    while True:
        steps = simulation.cost.program(most)
        queues = (des.Queue(counts, seconds) for counts, seconds in _queues(group, simulation))
        durations, rngs = _durations(steps, group.load, group.costs), simulation.rngs(group.minibatches)
        asked, had, takers = des.run_shared(steps, durations, queues, cluster, rngs)
        counts = group.load.counts + np.array([np.bincount(t, minlength=simulation.cost.workers) for t in takers])
        if counts.max() < most:  # else one that came to the end may have wanted more
            break
        most *= 2
    block = Block(steps, group.minibatches, counts, asked, had, padded(takers))
    return shortened(block, simulation.cost.program(int(counts.max())))


def _queues(group: _Alike, simulation: Simulation) -> Iterator[tuple[Ints, Floats]]:
    """For each minibatch the microbatches that devices have of their own, and its queue's seconds."""
    for b, (schedule, counts) in enumerate(zip(group.schedules, group.load.counts, strict=True)):
        alone = replace(group, schedules=(schedule,), costs=group.costs[b : b + 1], luck=group.luck[b : b + 1])
        entries = _entries(alone, simulation)
        yield counts, entries.seconds[:, :, entries.kinds].swapaxes(0, 1)


def _usage_of(group: _Alike, simulation: Simulation) -> metrics.Usage:
    if simulation.executor != "analytic":
        return metrics.measure(_execute(group, simulation))
    steps = group.program
    asked, had, begun = analytic.recycled_rows(steps, metrics.uses(steps), group.durations.shape[1:])
    order = analytic.scan(steps, analytic.laid_out(group.durations), asked, had, begun)
    return metrics.measure_rows(steps, asked, had, order, begun, simulated=True)


def _makespans_of(group: _Alike, simulation: Simulation) -> Floats:
    steps = group.program
    if simulation.executor != "analytic":
        block = _execute(group, simulation)
        return metrics.makespans(block.program, block.had, range(len(block.had)))
    asked, had, begun = analytic.recycled_rows(steps, range(len(steps.steps)), group.durations.shape[1:])
    return metrics.makespans(steps, had, analytic.scan(steps, analytic.laid_out(group.durations), asked, had, begun))
