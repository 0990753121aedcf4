"""Schedules at a cost: every span as a timeline, or group by group their usage, or their makespans alone.

The scan runs them wherever it knows the answer, and discrete events where links are shared or something is drawn. Both
give the same last bit where both know it, so nobody has to choose.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from odcsim.cost import Cost, Load
from odcsim.errors import InputError
from odcsim.executors import analytic, taking
from odcsim.program import Program, check_counts
from odcsim.results import metrics
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.support.checked import expect, shown
from odcsim.timeline import About, Block, Floats, Ints, Timeline, padded, shortened

GROUP = 8192  # minibatches x devices at once where only their usage is wanted: their rows stay in the cache


def simulate(file: ScheduleFile, cost: Cost, *, seed: int = 0) -> Timeline:
    """Every span of every minibatch."""
    expect(file, ScheduleFile, "schedules", "odcsim.plan")
    if not isinstance(cost, Cost):
        raise InputError(f"no cost: {shown(cost)}", fix="give question.cost, of a question as odcsim.ask makes it")
    header = file.header
    about = About(
        executor="des" if cost.cluster.eventful else "analytic",
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
    items = _items([(file.schedules, cost)])
    blocks = tuple(map(_run, _groups(items, seed, None)))
    return Timeline(about, blocks, *carried(file.schedules))


def usage(schedules: Sequence[Schedule], cost: Cost, *, seed: int = 0) -> metrics.Usage:
    """What `metrics.usage(simulate(...))` says, without ever holding the spans of more than a group."""
    return usages([schedules], cost, seed=seed)[0]


def usages(plans: Sequence[Sequence[Schedule]], cost: Cost, *, seed: int = 0, first: int = 0) -> list[metrics.Usage]:
    """Of several plans of the same minibatches, which are simulated at once where their shapes are alike. `first`: the
    number of the first minibatch, since what is drawn for one goes by its number."""
    items = _items([(schedules, cost) for schedules in plans], first)
    groups = ((group.places, _usage(group)) for group in _groups(items, seed, GROUP))
    return metrics.parted(metrics.assemble(groups, len(items)), len(plans)) if plans else []


def makespans(schedules: Sequence[Schedule], cost: Cost, *, seed: int = 0, first: int = 0) -> Floats:
    """The makespans of that usage alone, which takes a third of its time."""
    return _makespans(_items([(schedules, cost)], first), seed)


def stretched(schedules: Sequence[Schedule], cost: Cost, factors: Sequence[float], *, seed: int = 0) -> Floats:
    """Makespans [factor, minibatch] with all compute so many times as long, simulated together like several plans.

    Luck, jitter and swings of a minibatch are the same under every factor.
    """
    items = _items([(schedules, replace(cost, profile=cost.profile.stretched(factor))) for factor in factors])
    return _makespans(items, seed).reshape(len(factors), len(schedules))


def carried(schedules: Sequence[Schedule]) -> tuple[Ints, Ints]:
    """Samples and tokens of each minibatch."""
    samples = np.array([len(s.lengths) for s in schedules], dtype=np.int64)
    return samples, np.array([s.sizes.sum() for s in schedules], dtype=np.int64)


def fidelity(cost: Cost, schedules: Sequence[Schedule]) -> str:
    """The profile's fidelity; `extrapolated` where a sample, a microbatch or the devices are beyond it, and `catalogue`
    where all microbatches are as empty as those that it has somebody else's seconds for."""
    profile = cost.profile
    longest = max(int(s.sizes.max()) for s in schedules)
    fullest = max(s.fullest for s in schedules)
    beyond = bool(profile.longest and longest > profile.longest) or not profile.measured_with(cost.cluster.gpus)
    empty = profile.fewest and not profile.joined and any((s.loads < profile.fewest).any() for s in schedules)
    if beyond or empty or (profile.most_tokens and fullest > profile.most_tokens):
        return "extrapolated"
    return "catalogue" if profile.joined and 2 * fullest <= profile.fewest else profile.fidelity


@dataclass(frozen=True, slots=True)
class _Item:
    """A minibatch to simulate."""

    place: int  # in the answer
    number: int  # what is drawn for it goes by that
    schedule: Schedule
    cost: Cost


@dataclass(frozen=True, slots=True)
class _Group:
    """Minibatches of like shape: the program that they share, and the seconds of its rows."""

    items: Sequence[_Item]
    seed: int
    program: Program
    load: Load
    durations: Floats
    luck: Sequence[Floats]
    takers: Ints | None = None  # of shared queues, where the scan has told

    @property
    def places(self) -> Ints:
        return np.array([item.place for item in self.items], dtype=np.int64)

    @property
    def cost(self) -> Cost:
        """Of the first: all have its cluster and its recipe."""
        return self.items[0].cost

    @property
    def queued(self) -> bool:
        return bool(self.items[0].schedule.queued)


def _items(plans: Sequence[tuple[Sequence[Schedule], Cost]], first: int = 0) -> list[_Item]:
    """Refuses what would hang, and schedules for other devices."""
    items: list[_Item] = []
    for schedules, cost in plans:
        for number, schedule in enumerate(schedules, first):
            if (devices := len(schedule.flat.counts)) != cost.workers:
                raise InputError(f"schedule for {devices} devices on a cluster of {cost.workers}")
            if schedule.uneven:
                where = f"minibatch {number}"
                check_counts(cost.recipe.sync, schedule.microbatches, schedule.queued, where=where)
            items.append(_Item(len(items), number, schedule, cost))
    return items


def _groups(items: Sequence[_Item], seed: int, size: int | None) -> Iterator[_Group]:
    """At most `size` minibatches x devices together.

    Where the scan tells who takes which entry of a queue, what comes of it is grouped anew; events run queues
    themselves.
    """
    for some in _alike(items, size):
        group = _group(some, seed)
        if group.cost.cluster.eventful or not group.queued:
            yield group
            continue
        takers = taking.take(group.program, group.durations, group.cost.program(1), _entries(group))
        row_of = {item.place: row for item, row in zip(some, takers, strict=True)}
        ran = [replace(j, schedule=j.schedule.realised(row_of[j.place][: j.schedule.queued])) for j in some]
        for part in _alike(ran, None):
            yield replace(_group(part, seed), takers=np.array([row_of[item.place] for item in part]))


def _alike(items: Sequence[_Item], size: int | None) -> Iterator[list[_Item]]:
    groups: dict[tuple[int, bool], list[_Item]] = {}
    for item in items:
        groups.setdefault((int(item.schedule.flat.counts.max()), bool(item.schedule.queued)), []).append(item)
    for _, some in sorted(groups.items(), key=lambda group: group[0]):
        stride = max(1, size // some[0].cost.workers) if size else len(some)
        for first in range(0, len(some), stride):
            yield some[first : first + stride]


def _group(items: Sequence[_Item], seed: int) -> _Group:
    cost, schedules = items[0].cost, [item.schedule for item in items]
    luck = cost.luck(schedules, [item.number for item in items], seed)
    load = Load.of(cost.model, schedules, luck)
    program = cost.program(len(load.tokens))
    return _Group(items, seed, program, load, _durations(program, load, [item.cost for item in items]), luck)


def _durations(program: Program, load: Load, costs: Sequence[Cost], among: Sequence[int] | None = None) -> Floats:
    """Seconds of each minibatch by its own cost; those of a cost stand beside each other."""
    pieces, first = [], 0
    for cost, of in groupby(costs):
        here = slice(first, first + sum(1 for _ in of))
        part = Load(load.tokens[:, here], load.squares[:, here], load.samples[:, here], load.counts[here])
        pieces.append(cost.durations(program, part, among))
        first = here.stop
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)


def _entries(group: _Group) -> taking.Queues:
    """The entries of the queues, and their seconds as microbatches of any device."""
    cost, entry = group.cost, group.cost.program(1)
    load = Load.of(cost.model, [item.schedule for item in group.items], group.luck, queues=True)
    counts = load.counts[:, 0]
    there = np.arange(len(load.tokens)) < counts[:, None]
    tokens, squares, samples = (of[:, :, 0].T[there][None, :, None] for of in (load.tokens, load.squares, load.samples))
    one = Load(tokens, squares, samples, np.ones((tokens.shape[1], 1), dtype=np.int64))
    slow = dict(cost.cluster.slow)
    factors = [slow.get(device, 1.0) for device in range(cost.workers)]
    _, alike, kinds = np.unique(factors, return_index=True, return_inverse=True)
    owners = [item.cost for item, count in zip(group.items, counts.tolist(), strict=True) for _ in range(count)]
    seconds = _durations(entry, one, owners, alike.tolist())
    seconds[[step.duration for step in entry.steps[: entry.begin]]] = 0.0  # a device's first microbatch has waited
    return taking.Queues(counts.tolist(), seconds, kinds)


def _run(group: _Group) -> Block:
    """All spans of a group."""
    program, numbers = group.program, np.array([item.number for item in group.items], dtype=np.int64)
    if not group.cost.cluster.eventful:
        asked, had = analytic.run(program, group.durations)
        return Block(program, numbers, group.load.counts, asked, had, group.takers)
    from odcsim.executors import des  # SimPy loads only where it is used: sweeps start without it

    cluster, costs = group.cost.cluster, [item.cost for item in group.items]
    queues: list[des.Queue] = []
    if group.queued:
        entries = _entries(group)
        edges = np.cumsum([0, *entries.counts])
        for planned, (first, last) in zip(group.load.counts, pairwise(edges), strict=True):
            queues.append(des.Queue(planned, entries.seconds[:, first:last], entries.kinds))
        # Room for a device that takes twice its share. How long a program they need shows when they have run.
        most = program.microbatches + 2 + 2 * max(entries.counts) // group.cost.workers
        program = group.cost.program(most)
    while True:
        rngs = [np.random.default_rng([group.seed, number]) for number in numbers]
        asked, had, takers = des.run(program, _durations(program, group.load, costs), cluster, rngs, queues)
        if not queues:
            return Block(program, numbers, group.load.counts, asked, had)
        counts = group.load.counts + np.array([np.bincount(t, minlength=group.cost.workers) for t in takers])
        if counts.max() < program.microbatches:  # else one that came to the end may have wanted more
            block = Block(program, numbers, counts, asked, had, padded(takers))
            return shortened(block, group.cost.program(int(counts.max())))
        program = group.cost.program(2 * program.microbatches)


def _usage(group: _Group) -> metrics.Usage:
    if group.cost.cluster.eventful:
        return metrics.measure(_run(group))
    asked, had, begun, order = analytic.recycled(group.program, group.durations, metrics.uses(group.program))
    return metrics.measure_rows(group.program, asked, had, order, begun, simulated=True)


def _makespans(items: Sequence[_Item], seed: int) -> Floats:
    spans = np.zeros(len(items))
    for group in _groups(items, seed, GROUP):
        if group.cost.cluster.eventful:
            block = _run(group)
            spans[group.places] = metrics.makespans(block.program, block.had, range(len(block.had)))
        else:
            uses = range(len(group.program.steps))
            _, had, _, order = analytic.recycled(group.program, group.durations, uses)
            spans[group.places] = metrics.makespans(group.program, had, order)
    return spans
