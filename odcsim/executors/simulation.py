"""Schedules at a cost: every span as a timeline, or group by group their usage, or their makespans alone.

The scan runs them wherever it knows the answer, and discrete events where links are shared or something is drawn. Both
give the same last bit where both know it, so nobody has to choose.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    pieces: list[tuple[Ints, metrics.Usage]] = []
    for group in _groups(items, seed, GROUP):
        program, asked, had, begun, steps = _rows(group, metrics.uses)
        usage = metrics.measure_rows(program, asked, had, steps, begun, simulated=begun is not None)
        pieces.append((group.places, usage))
    return metrics.parted(metrics.assemble(pieces, len(items)), len(plans)) if plans else []


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
    counts = [timing.devices for timing in profile.timings] or [cost.cluster.gpus]
    beyond = bool(profile.longest and longest > profile.longest) or not min(counts) <= cost.cluster.gpus <= max(counts)
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


class _Group:
    """Minibatches of like shape: the program that they share, and the seconds of its rows."""

    def __init__(self, items: Sequence[_Item], seed: int, takers: Ints | None = None) -> None:
        schedules = [item.schedule for item in items]
        self.schedules, self.seed = schedules, seed
        self.takers = takers  # of shared queues, where the scan has told
        self.queued = bool(schedules[0].queued)
        self.places, self.numbers = (np.array(of) for of in zip(*((i.place, i.number) for i in items), strict=True))
        self.costs = [item.cost for item in items]
        self.cost = self.costs[0]  # all have its cluster and its recipe
        self.luck = self.cost.luck(schedules, self.numbers.tolist(), seed)
        self.load = Load.of(self.cost.model, schedules, self.luck)
        self.program = self.cost.program(len(self.load.tokens))
        self.durations = _durations(self.program, self.load, self.costs)


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
        group = _Group(some, seed)
        if group.cost.cluster.eventful or not group.queued:
            yield group
            continue
        takers = taking.take(group.program, group.durations, group.cost.program(1), _entries(group))
        row_of = {item.place: row for item, row in zip(some, takers, strict=True)}
        ran = [replace(j, schedule=j.schedule.realised(row_of[j.place][: j.schedule.queued])) for j in some]
        for part in _alike(ran, None):
            yield _Group(part, seed, np.array([row_of[item.place] for item in part]))


def _alike(items: Sequence[_Item], size: int | None) -> Iterator[list[_Item]]:
    groups: dict[tuple[int, bool], list[_Item]] = {}
    for item in items:
        groups.setdefault((int(item.schedule.flat.counts.max()), bool(item.schedule.queued)), []).append(item)
    for _, some in sorted(groups.items(), key=lambda group: group[0]):
        stride = max(1, size // some[0].cost.workers) if size else len(some)
        for first in range(0, len(some), stride):
            yield some[first : first + stride]


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
    load = Load.of(cost.model, group.schedules, group.luck, queues=True)
    counts = load.counts[:, 0]
    there = np.arange(len(load.tokens)) < counts[:, None]
    tokens, squares, samples = (of[:, :, 0].T[there][None, :, None] for of in (load.tokens, load.squares, load.samples))
    one = Load(tokens, squares, samples, np.ones((tokens.shape[1], 1), dtype=np.int64))
    _, alike, kinds = np.unique(cost.pace, return_index=True, return_inverse=True)
    owners = [own for own, count in zip(group.costs, counts.tolist(), strict=True) for _ in range(count)]
    seconds = _durations(entry, one, owners, alike.tolist())
    seconds[[step.duration for step in entry.steps[: entry.begin]]] = 0.0  # a device's first microbatch has waited
    return taking.Queues(counts.tolist(), seconds, kinds)


def _run(group: _Group) -> Block:
    """All spans of a group."""
    program, numbers = group.program, group.numbers
    if not group.cost.cluster.eventful:
        asked, had = analytic.run(program, group.durations)
        return Block(program, numbers, group.load.counts, asked, had, group.takers)
    from odcsim.executors import des  # SimPy loads only where it is used: sweeps start without it

    cluster, queues = group.cost.cluster, list[des.Queue]()
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
        asked, had, takers = des.run(program, _durations(program, group.load, group.costs), cluster, rngs, queues)
        if not queues:
            return Block(program, numbers, group.load.counts, asked, had)
        counts = group.load.counts + np.array([np.bincount(t, minlength=group.cost.workers) for t in takers])
        if counts.max() < program.microbatches:  # else one that came to the end may have wanted more
            block = Block(program, numbers, counts, asked, had, padded(takers))
            return shortened(block, group.cost.program(int(counts.max())))
        program = group.cost.program(2 * program.microbatches)


def _rows(
    group: _Group, uses: Callable[[Program], Sequence[int]]
) -> tuple[Program, analytic.Rows, analytic.Rows, analytic.Rows | None, Iterable[int]]:
    """The program, `asked`, `had` and `begun`, and the steps as their rows hold. Of events all rows do from the start,
    and nobody has noted when a meeting stopped waiting."""
    if group.cost.cluster.eventful:
        block = _run(group)
        return block.program, block.asked, block.had, None, range(len(block.had))
    return group.program, *analytic.recycled(group.program, group.durations, uses(group.program))


def _makespans(items: Sequence[_Item], seed: int) -> Floats:
    spans = np.zeros(len(items))
    for group in _groups(items, seed, GROUP):
        program, _, had, _, steps = _rows(group, lambda program: range(len(program.steps)))
        spans[group.places] = metrics.makespans(program, had, steps)
    return spans
