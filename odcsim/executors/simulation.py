"""Schedules at a cost: every span as a timeline, or group by group their usage, or their makespans alone.

The scan runs them wherever it knows the answer, and discrete events where links are shared or something is drawn. Both
give the same last bit where both know it, so nobody has to choose.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from odcsim.cost import Cost, Load
from odcsim.errors import InputError
from odcsim.executors import analytic
from odcsim.program import Program, check_counts
from odcsim.results import metrics
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.support.values import expect, shown
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
    blocks = tuple(map(_run, _groups([file.schedules], cost, seed)))
    samples, tokens = carried(file.schedules)
    return Timeline(about, blocks, samples, tokens)


def spans(program: Program, durations: Floats) -> Block:
    """Any program, by the seconds of its rows [row, minibatch, device], where nothing is shared or drawn."""
    _, minibatches, devices = durations.shape
    asked, had = analytic.run(program, durations)
    counts = np.full((minibatches, devices), program.microbatches, dtype=np.int64)
    return Block(program, np.arange(minibatches), counts, asked, had)


def usage(schedules: Sequence[Schedule], cost: Cost, *, seed: int = 0) -> metrics.Usage:
    """What `metrics.usage(simulate(...))` says, without ever holding the spans of more than a group."""
    return usages([schedules], cost, seed=seed)[0]


def usages(plans: Sequence[Sequence[Schedule]], cost: Cost, *, seed: int = 0, first: int = 0) -> list[metrics.Usage]:
    """Of several plans of the same minibatches, which are simulated at once where their shapes are alike. `first`: the
    number of the first minibatch, since what is drawn for one goes by its number."""
    pieces: list[tuple[Ints, metrics.Usage]] = []
    for group in _groups(plans, cost, seed, first, GROUP):
        program, asked, had, begun, steps = _rows(group, metrics.uses)
        usage = metrics.measure_rows(program, asked, had, steps, begun, simulated=begun is not None)
        pieces.append((group.places, usage))
    return metrics.split(metrics.assemble(pieces, sum(map(len, plans))), len(plans)) if plans else []


def makespans(schedules: Sequence[Schedule], cost: Cost, *, seed: int = 0, first: int = 0) -> Floats:
    """The makespans of that usage alone, which takes a third of its time."""
    spans = np.zeros(len(schedules))
    for group in _groups([schedules], cost, seed, first, GROUP):
        program, _, had, _, steps = _rows(group, lambda program: range(len(program.steps)))
        spans[group.places] = metrics.makespans(program, had, steps)
    return spans


def carried(schedules: Sequence[Schedule]) -> tuple[Ints, Ints]:
    """Samples and tokens of each minibatch."""
    samples = np.array([len(s.lengths) for s in schedules], dtype=np.int64)
    return samples, np.array([s.sizes.sum() for s in schedules], dtype=np.int64)


def fidelity(cost: Cost, schedules: Sequence[Schedule]) -> str:
    """The profile's fidelity; `extrapolated` where a sample, a microbatch or the devices are beyond it, and `catalogue`
    where all microbatches are as empty as those that it has somebody else's seconds for."""
    profile = cost.own
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


class _Group:
    """Minibatches of like shape: the program that they share, and the seconds of its rows."""

    def __init__(self, items: Sequence[_Item], cost: Cost, seed: int, takers: Ints | None = None) -> None:
        self.schedules, self.cost, self.seed = [item.schedule for item in items], cost, seed
        self.takers = takers  # of shared queues, where the scan has told
        self.queued = bool(self.schedules[0].queued)
        self.places, self.numbers = (np.array(of) for of in zip(*((i.place, i.number) for i in items), strict=True))
        self.luck = cost.luck(self.schedules, self.numbers.tolist(), seed)
        self.load = Load.of(cost.model, self.schedules, self.luck)
        self.program = cost.program(len(self.load.tokens))
        self.durations = cost.durations(self.program, self.load)


def _groups(
    plans: Sequence[Sequence[Schedule]], cost: Cost, seed: int, first: int = 0, most: int | None = None
) -> Iterator[_Group]:
    """At most so many minibatches x devices together. What would hang is refused, and schedules for other devices.

    Where the scan tells who takes which entry of a queue, what comes of it is grouped anew; events run queues
    themselves.
    """
    items: list[_Item] = []
    for schedules in plans:
        for number, schedule in enumerate(schedules, first):
            if (devices := len(schedule.flat.counts)) != cost.workers:
                raise InputError(f"schedule for {devices} devices on a cluster of {cost.workers}")
            if schedule.uneven:
                where = f"minibatch {number}"
                check_counts(cost.recipe.sync, schedule.microbatches, schedule.queued, where=where)
            items.append(_Item(len(items), number, schedule))
    for some in _alike(items, most // cost.workers if most else len(items)):
        group = _Group(some, cost, seed)
        if cost.cluster.eventful or not group.queued:
            yield group
            continue
        takers = analytic.take(group.program, group.durations, cost.program(1), _entries(group))
        row_of = {item.place: row for item, row in zip(some, takers, strict=True)}
        ran = [replace(j, schedule=j.schedule.realised(row_of[j.place][: j.schedule.queued])) for j in some]
        for part in _alike(ran, len(ran)):
            yield _Group(part, cost, seed, np.array([row_of[item.place] for item in part]))


def _alike(items: Sequence[_Item], most: int) -> Iterator[list[_Item]]:
    """Those of one program, so many at a time, and at least one."""
    groups: dict[tuple[int, bool], list[_Item]] = {}
    for item in items:
        groups.setdefault((int(item.schedule.flat.counts.max()), bool(item.schedule.queued)), []).append(item)
    for _, some in sorted(groups.items(), key=lambda group: group[0]):
        for first in range(0, len(some), max(1, most)):
            yield some[first : first + max(1, most)]


def _entries(group: _Group) -> analytic.Entries:
    """The entries of the queues, and their seconds as microbatches of any device."""
    cost, entry = group.cost, group.cost.program(1)
    load = Load.of(cost.model, group.schedules, group.luck, queues=True)
    counts = load.counts[:, 0]
    there = np.arange(len(load.tokens)) < counts[:, None]
    tokens, squares, samples = (of[:, :, 0].T[there][None, :, None] for of in (load.tokens, load.squares, load.samples))
    one = Load(tokens, squares, samples, np.ones((tokens.shape[1], 1), dtype=np.int64))
    _, alike, kinds = np.unique(cost.pace, return_index=True, return_inverse=True)
    seconds = cost.durations(entry, one, alike.tolist())
    seconds[[step.duration for step in entry.steps[: entry.begin]]] = 0.0  # a device's first microbatch has waited
    return analytic.Entries(counts.tolist(), seconds, kinds)


def _run(group: _Group) -> Block:
    """All spans of a group."""
    program, numbers, cost = group.program, group.numbers, group.cost
    if not cost.cluster.eventful:
        asked, had = analytic.run(program, group.durations)
        return Block(program, numbers, group.load.counts, asked, had, group.takers)
    from odcsim.executors import des  # SimPy loads only where it is used: sweeps start without it

    queues: list[des.Queue] = []
    if group.queued:
        entries = _entries(group)
        edges = np.cumsum([0, *entries.counts])
        for planned, (first, last) in zip(group.load.counts, pairwise(edges), strict=True):
            queues.append(des.Queue(planned, entries.seconds[:, first:last], entries.kinds))
        # Room for a device that takes twice its share. How long a program they need shows when they have run.
        most = program.microbatches + 2 + 2 * max(entries.counts) // cost.workers
        program = cost.program(most)
    while True:
        rngs = [np.random.default_rng([group.seed, number]) for number in numbers]
        planned, gpus = cost.durations(program, group.load), cost.recipe.context
        asked, had, takers = des.run(program, planned, cost.cluster, rngs, queues, gpus)
        if not queues:
            return Block(program, numbers, group.load.counts, asked, had)
        counts = group.load.counts + np.array([np.bincount(t, minlength=cost.workers) for t in takers])
        if counts.max() < program.microbatches:  # else one that came to the end may have wanted more
            block = Block(program, numbers, counts, asked, had, padded(takers))
            return shortened(block, cost.program(int(counts.max())))
        program = cost.program(2 * program.microbatches)


def _rows(
    group: _Group, uses: Callable[[Program], Sequence[int]]
) -> tuple[Program, analytic.Rows, analytic.Rows, analytic.Rows | None, Iterable[int]]:
    """The program, `asked`, `had` and `begun`, and the steps as their rows hold. Of events all rows do from the start,
    and nobody has noted when a meeting stopped waiting."""
    if group.cost.cluster.eventful:
        block = _run(group)
        return block.program, block.asked, block.had, None, range(len(block.had))
    return group.program, *analytic.recycled(group.program, group.durations, uses(group.program))
