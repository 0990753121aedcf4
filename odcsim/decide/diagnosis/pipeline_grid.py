"""The passes of a run's pipelines, taken from the pieces of its ranks, and replayed.

A pass begins when its rank is free and the stage that hands it its input is done, and the step ends when the last rank
is.

Columns are pipelines of one step, one for each data-parallel rank. Those in which every stage runs its passes in the
same order are replayed together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from odcsim.errors import InputError
from odcsim.observed.run import NO, Doing, RanStep, SeenRun, Track
from odcsim.timeline import Floats, Ints

WAIT = len(Doing)  # a meeting's piece until the last has come
# The kinds of pieces that lie between passes, by the part of the step that they count to.
BETWEEN: Mapping[str, tuple[int, ...]] = {
    "compute": (Doing.COMPUTE,),
    "transfer": (Doing.MEETING, Doing.TRANSFER, Doing.STAGE),
    "loader": (Doing.LOADER,),
    "collector": (Doing.COLLECTOR,),
    "launch": (Doing.HOST,),
    "edges": (Doing.EDGE,),
    "untold": (WAIT,),
}
WHOLE = "trace whole steps of a pipeline, with forwards and backwards of each microbatch"
Gaps = Mapping[str, Floats]  # seconds by part of the step
Order = tuple[tuple[int, int], ...]  # microbatch, and which of its passes


class PassNode(NamedTuple):
    """A forward or backward of a microbatch on a stage. The nodes that it comes after are NO where there is none."""

    stage: int
    place: int  # among its microbatch's on this stage: forwards of its chunks, then their backwards
    microbatch: int
    before: int  # on its own stage
    giver: int  # on the stage that hands it its input


@dataclass(frozen=True, slots=True, eq=False)
class PipelineColumns:
    """Columns with the same order of passes."""

    nodes: tuple[PassNode, ...]  # each behind those that it comes after
    last: Ints  # the last node of each stage
    steps: Ints  # the place of each column's step
    replicas: Ints  # the data-parallel rank of each column, by its place
    units: Ints = field(repr=False)  # the row of PipelineGrid.seconds [column, microbatch]
    gaps: Gaps = field(repr=False)  # from when a pass could begin to when it does [node, column]
    tails: Gaps = field(repr=False)  # after the last pass, without waiting [stage, column]


@dataclass(frozen=True, slots=True, eq=False)
class PipelineGrid:
    """All steps of a run. A unit is a microbatch of one step and one data-parallel rank."""

    ranks: Ints  # [replica, stage]
    measured: Floats  # seconds of each step
    columns: tuple[PipelineColumns, ...]
    seconds: Floats = field(repr=False)  # of passes [unit, stage, place]
    replicas: Ints = field(repr=False)  # of units
    steps: Ints = field(repr=False)  # of units
    numbers: Ints = field(repr=False)  # of units, among those of their column

    def replay(self, seconds: Floats, parts: Sequence[tuple[Gaps, Gaps]] = ()) -> Floats:
        """Seconds of each step, with these of passes, and with these gaps and tails of each of `columns`."""
        ends = np.zeros(len(self.measured))
        for columns, (gaps, tails) in zip(self.columns, parts or self.parts(), strict=True):
            np.maximum.at(ends, columns.steps, arrivals(columns, seconds, gaps, tails).max(axis=0))
        return ends

    def parts(self) -> list[tuple[Gaps, Gaps]]:
        return [(columns.gaps, columns.tails) for columns in self.columns]


@dataclass(frozen=True, slots=True, eq=False)
class RankPasses:
    """One rank in one step, in seconds since it began."""

    order: Order
    begin: Floats
    end: Floats
    edges: Floats
    sums: Mapping[str, Floats]  # of each part, until each edge

    def between(self, low: Floats, high: Floats) -> Gaps:
        return {
            part: np.interp(high, self.edges, sums) - np.interp(low, self.edges, sums)
            for part, sums in self.sums.items()
        }


def grid_of(run: SeenRun) -> PipelineGrid:
    ranks = _ranks(run)
    groups: dict[tuple[Order, ...], list[tuple[int, int, list[RankPasses]]]] = {}
    for place, step in enumerate(run.steps):
        ran = {track.rank: _passes(step, track) for track in step.tracks}
        for replica, row in enumerate(ranks.tolist()):
            every = [ran[rank] for rank in row]
            groups.setdefault(tuple(one.order for one in every), []).append((place, replica, every))
    columns, seconds, first = [], [], 0
    where: list[tuple[Ints, Ints, Ints]] = []
    for orders, members in groups.items():
        nodes = _nodes(orders, run.source)
        group, of_units = _columns(nodes, members, first)
        columns.append(group)
        seconds.append(of_units)
        count = group.units.shape[1]
        where.append(
            (np.repeat(group.replicas, count), np.repeat(group.steps, count), np.tile(range(count), len(members)))
        )
        first += len(of_units)
    measured = np.array([step.seconds for step in run.steps])
    if len({each.shape[1:] for each in seconds}) > 1:
        raise InputError("microbatches of more passes than others", where=run.source, fix=WHOLE)
    replicas, steps, numbers = (np.concatenate(column) for column in zip(*where, strict=True))
    return PipelineGrid(ranks, measured, tuple(columns), np.concatenate(seconds), replicas, steps, numbers)


def _ranks(run: SeenRun) -> Ints:
    """Of each data-parallel rank the rank of each stage: those that run the same samples, or in the order of ranks."""
    stages = sorted({run.stages[rank] for rank in run.seen})
    if stages != list(range(len(stages))):
        raise InputError(f"stages {', '.join(map(str, stages))}", where=run.source, fix="give the ranks of all stages")
    replicas: dict[int, dict[int, int]] = {}
    nth: Counter[int] = Counter()
    for rank in sorted(run.seen, reverse=True):  # of several that run the same, the first
        stage = run.stages[rank]
        replica = run.replicas.get(rank, -nth[stage])
        nth[stage] += 1
        replicas.setdefault(replica, {})[stage] = rank
    if complete := [row for _, row in sorted(replicas.items()) if len(row) == len(stages)]:
        return np.array([[row[stage] for stage in stages] for row in complete])
    raise InputError("no data-parallel rank with all its stages", where=run.source, fix="give the ranks of all stages")


def _passes(step: RanStep, track: Track) -> RankPasses:
    zero = float(track.edges[0])
    begin, end, kinds = track.edges[:-1] - zero, track.edges[1:] - zero, track.kinds
    passes = np.flatnonzero((kinds == Doing.COMPUTE) & (track.microbatches != NO))
    seen: Counter[int] = Counter()
    order = []
    for microbatch in track.microbatches[passes].tolist():
        order.append((microbatch, seen[microbatch]))
        seen[microbatch] += 1
    met = np.flatnonzero(track.meetings != NO)
    come = np.array([max(step.meetings[k].came.values()) - zero for k in track.meetings[met].tolist()])
    cuts = np.clip(come, begin[met], end[met])
    kinds = np.insert(kinds, met, WAIT)
    edges = np.insert(track.edges - zero, met + 1, cuts)
    took = np.diff(edges)
    sums = {part: np.r_[0.0, np.cumsum(took * np.isin(kinds, every))] for part, every in BETWEEN.items()}
    return RankPasses(tuple(order), begin[passes], end[passes], edges, sums)


def _nodes(orders: Sequence[Order], where: str) -> tuple[PassNode, ...]:
    """Passes of all stages, each behind those that it comes after."""
    every = {microbatch for order in orders for microbatch, _ in order}
    passes = Counter(microbatch for microbatch, _ in orders[0])
    each = max(passes.values(), default=0)
    wanted = Counter(dict.fromkeys(every, each))
    if each % 2 or not each or any(Counter(m for m, _ in order) != wanted for order in orders):
        raise InputError("stages that do not run the same passes", where=where, fix=WHOLE)
    number = {microbatch: i for i, microbatch in enumerate(sorted(every))}
    nodes: list[PassNode] = []
    places: dict[tuple[int, int, int], int] = {}  # by microbatch, stage and place
    left = [list(order) for order in orders]
    before = [NO] * len(orders)
    while any(left):
        going = False
        for stage, order in enumerate(left):
            while order:
                microbatch, place = order[0]
                giver = _giver(stage, place, len(orders), each)
                if giver is not None and (microbatch, *giver) not in places:
                    break
                order.pop(0)
                going = True
                behind = NO if giver is None else places[microbatch, *giver]
                places[microbatch, stage, place] = len(nodes)
                nodes.append(PassNode(stage, place, number[microbatch], before[stage], behind))
                before[stage] = len(nodes) - 1
        if not going:
            raise InputError("passes in an order in which stages wait for each other", where=where, fix=WHOLE)
    return tuple(nodes)


def _giver(stage: int, place: int, stages: int, each: int) -> tuple[int, int] | None:
    """The stage and place of the pass whose output this one takes; None of the first."""
    chunks = each // 2
    forward = place < chunks
    chunk = (place if forward else each - 1 - place) * stages + stage
    giver = chunk - 1 if forward else chunk + 1
    if not 0 <= giver < chunks * stages:
        return None
    return giver % stages, giver // stages if forward else each - 1 - giver // stages


def _columns(
    nodes: tuple[PassNode, ...], members: Sequence[tuple[int, int, list[RankPasses]]], first: int
) -> tuple[PipelineColumns, Floats]:
    """And the seconds of their units, whose numbers begin at `first`."""
    stages = len(members[0][2])
    count = 1 + max(node.microbatch for node in nodes)
    of = [[i for i, node in enumerate(nodes) if node.stage == stage] for stage in range(stages)]
    begin, end = np.zeros((2, len(nodes), len(members)))
    for column, (_, _, every) in enumerate(members):
        for stage, ran in enumerate(every):
            begin[of[stage], column], end[of[stage], column] = ran.begin, ran.end
    ready = np.zeros_like(begin)
    for i, node in enumerate(nodes):
        for other in (node.before, node.giver):
            if other != NO:
                ready[i] = np.maximum(ready[i], end[other])
    gaps = {part: np.zeros_like(begin) for part in BETWEEN}
    tails = {part: np.zeros((stages, len(members))) for part in BETWEEN if part != "untold"}
    for column, (_, _, every) in enumerate(members):
        for stage, ran in enumerate(every):
            low, high = ready[of[stage], column], begin[of[stage], column]
            for part, seconds in ran.between(np.minimum(low, high), high).items():
                gaps[part][of[stage], column] = seconds
            after = ran.between(end[of[stage][-1:], column], ran.edges[-1:])
            for part in tails:
                tails[part][stage, column] = after[part][0]
    gaps["edges"] += np.minimum(0.0, begin - ready)  # clocks that are not quite the same
    units = first + np.arange(len(members) * count).reshape(len(members), count)
    seconds = np.zeros((len(members), count, stages, 1 + max(node.place for node in nodes)))
    for i, node in enumerate(nodes):
        seconds[:, node.microbatch, node.stage, node.place] = end[i] - begin[i]
    steps, replicas = (np.array([member[i] for member in members]) for i in (0, 1))
    last = np.array([each[-1] for each in of])
    group = PipelineColumns(nodes, last, steps, replicas, units, gaps, tails)
    return group, seconds.reshape(-1, *seconds.shape[2:])


def arrivals(columns: PipelineColumns, seconds: Floats, gaps: Gaps, tails: Gaps) -> Floats:
    """When each stage of each column is done, if none of them waits for another column [stage, column]."""
    between: Floats = np.sum([*gaps.values()], axis=0)
    ended: list[Floats] = []
    for node, gap in zip(columns.nodes, between, strict=True):
        ready = ended[node.before] if node.before != NO else np.zeros(len(columns.steps))
        if node.giver != NO:
            ready = np.maximum(ready, ended[node.giver])
        ended.append(ready + gap + seconds[columns.units[:, node.microbatch], node.stage, node.place])
    done: Floats = np.stack([ended[i] for i in columns.last]) + np.sum([*tails.values()], axis=0)
    return done
