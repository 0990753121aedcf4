"""Where the steps of a pipeline go: replayed from their own operations, with and without each cause."""

from collections.abc import Iterator, Mapping
from math import factorial

import numpy as np

from odcsim.decide.diagnosis.outcome import PARTS, Breakdown, LateMicrobatch, RankFound, step_parts
from odcsim.decide.diagnosis.pipeline_causes import PassCauses, causes_of
from odcsim.decide.diagnosis.pipeline_grid import Gaps, PipelineColumns, PipelineGrid, arrivals, grid_of
from odcsim.observed.run import NO, SeenRun
from odcsim.timeline import Floats

OF_PASSES = ("lengths", "device", "stages")  # causes that lengthen passes
OF_GAPS = ("loader", "collector", "launch")  # that lie between them, and need not be there
CAUSES = (*OF_PASSES, *OF_GAPS, "transfer", "untold")  # and transfers unlike others, and passes that nothing explains
BASE = ("compute", "transfer", "edges", "untold")  # what is left where none of them is
MOST_LATE = 20  # microbatches that are named
OFF = 0.02  # what a replay may be off by before it is said


def break_down_pipeline(run: SeenRun) -> Breakdown:
    """The parts of its steps. What a cause takes is the mean over all orders in which causes are taken away."""
    grid = grid_of(run)
    causes = causes_of(grid)
    by_step = _by_step(causes)
    return Breakdown(
        step_parts(by_step),
        tuple(_ranks(causes)),
        tuple(sorted(_late(run, causes), key=lambda late: -late.seconds)[:MOST_LATE]),
        by_step,
        tuple(_cannot(causes)),
    )


def _by_step(causes: PassCauses) -> Mapping[str, Floats]:
    grid = causes.grid
    there = list[str]()
    for name in CAUSES:
        if name in OF_GAPS:
            known = any(gaps[name].any() or tails[name].any() for gaps, tails in grid.parts())
        else:
            known = name != "device" or bool((causes.pace != 1).any())
        there += [name] if known else []
    every, with_ = range(1 << len(there)), dict[int, Floats]()
    for mask in every:
        some = {name for i, name in enumerate(there) if mask >> i & 1}
        lengths, device, stages = (name in some for name in OF_PASSES)
        seconds = causes.seconds(lengths=lengths, device=device, stages=stages, rest="untold" in some)
        with_[mask] = grid.replay(seconds, _between(grid, some))
    parts = {name: np.zeros(len(grid.measured)) for name in PARTS}
    count = len(there)
    for i, name in enumerate(there):
        for mask in every:
            if not mask >> i & 1:
                before = mask.bit_count()
                weight = factorial(before) * factorial(count - 1 - before) / factorial(count)
                parts[name] += weight * (with_[mask | 1 << i] - with_[mask])
    even = _own(causes)
    for name, seconds in even.items():
        parts[name] += seconds
    parts["bubble"] += with_[0] - sum(even.values())
    parts["untold"] += grid.measured - with_[every[-1]]
    return parts


def _between(grid: PipelineGrid, there: set[str]) -> list[tuple[Gaps, Gaps]]:
    return [(_without(gaps, there), _without(tails, there)) for gaps, tails in grid.parts()]


def _without(gaps: Gaps, there: set[str]) -> Gaps:
    """Transfers that are not to differ take as long as those of the same pass do on average."""
    left = {name: seconds for name, seconds in gaps.items() if name not in OF_GAPS or name in there}
    if "transfer" not in there:
        left["transfer"] = np.broadcast_to(gaps["transfer"].mean(axis=1, keepdims=True), gaps["transfer"].shape)
    return left


def _own(causes: PassCauses) -> dict[str, Floats]:
    """Seconds of each step that a rank's own work takes without any cause, on average over ranks."""
    grid = causes.grid
    sums = {name: np.zeros(len(grid.measured)) for name in BASE}
    ranks = np.zeros(len(grid.measured))
    passes = causes.seconds(lengths=False, device=False, stages=False, rest=False)
    for columns, (gaps, tails) in zip(grid.columns, _between(grid, set()), strict=True):
        own = _of_columns(columns, passes, gaps, tails)
        np.add.at(ranks, columns.steps, len(columns.last))
        for name in BASE:
            np.add.at(sums[name], columns.steps, own[name].sum(axis=0))
    return {name: seconds / ranks for name, seconds in sums.items()}


def _of_columns(columns: PipelineColumns, passes: Floats, gaps: Gaps, tails: Gaps) -> dict[str, Floats]:
    """Seconds of each part of its own [stage, column]."""
    stages = np.array([node.stage for node in columns.nodes])
    parts = {}
    for name, seconds in gaps.items():
        of_stages = np.stack([seconds[stages == stage].sum(axis=0) for stage in range(len(columns.last))])
        parts[name] = of_stages + tails.get(name, 0.0)
    parts["compute"] += passes[columns.units].sum(axis=(1, 3)).T
    return parts


def _ranks(causes: PassCauses) -> Iterator[RankFound]:
    """What a rank caused: how much shorter steps are with usual passes on it, and how much longer with its own among
    usual ones, in the mean."""
    grid = causes.grid
    compute, waiting, caused = np.zeros((3, *grid.ranks.shape))
    ends, others = grid.replay(grid.seconds), _next(grid)
    usual = np.broadcast_to(causes.usual, grid.seconds.shape)
    even = grid.replay(usual)
    for columns, (gaps, tails) in zip(grid.columns, grid.parts(), strict=True):
        own = _of_columns(columns, grid.seconds, gaps, tails)
        np.add.at(compute, columns.replicas, own["compute"].T)
        np.add.at(waiting, columns.replicas, (grid.measured[columns.steps] - sum(own.values())).T)
        for stage in range(grid.ranks.shape[1]):
            without, alone = grid.seconds.copy(), usual.copy()
            without[:, stage], alone[:, stage] = usual[:, stage], grid.seconds[:, stage]
            done, late = (arrivals(columns, each, gaps, tails).max(axis=0) for each in (without, alone))
            less = ends[columns.steps] - np.maximum(done, others[columns.steps, columns.replicas])
            more = late - even[columns.steps]
            np.add.at(caused[:, stage], columns.replicas, (np.maximum(less, 0.0) + np.maximum(more, 0.0)) / 2)
    steps, total = len(grid.measured), float(grid.measured.sum())
    for place, rank in np.ndenumerate(grid.ranks):
        yield RankFound(
            int(rank),
            float(compute[place]) / total,
            max(0.0, float(waiting[place]) / total),
            float(causes.pace[place]),
            (grid.ranks.size - 1) * float(caused[place]) / steps,
        )


def _done(grid: PipelineGrid) -> Floats:
    """When each data-parallel rank is done, if it waits for no other [step, replica]."""
    done = np.zeros((len(grid.measured), len(grid.ranks)))
    for columns, (gaps, tails) in zip(grid.columns, grid.parts(), strict=True):
        done[columns.steps, columns.replicas] = arrivals(columns, grid.seconds, gaps, tails).max(axis=0)
    return done


def _next(grid: PipelineGrid) -> Floats:
    """When the last of the others is done [step, replica]."""
    done, rows = _done(grid), np.arange(len(grid.measured))
    last = done.argmax(axis=1)
    others = np.repeat(done.max(axis=1, keepdims=True), done.shape[1], axis=1)
    done[rows, last] = 0.0
    others[rows, last] = done.max(axis=1)
    return others


def _late(run: SeenRun, causes: PassCauses) -> Iterator[LateMicrobatch]:
    """Of each step the longest microbatch of the data-parallel rank that is last, or the device that made it last."""
    grid = causes.grid
    tokens = {(step.number, m.rank, m.number): m.held for step in run.steps for m in step.microbatches if m.held}
    ends, last = grid.replay(grid.seconds), _done(grid).argmax(axis=1)
    excess = (grid.seconds / causes.paces - causes.usual).sum(axis=2)
    # Of each step the unit with the most of the data-parallel rank that is last.
    most = np.where(last[grid.steps] == grid.replicas, excess.sum(axis=1), -np.inf)
    order = np.lexsort((most, grid.steps))
    longest = order[np.searchsorted(grid.steps[order], np.arange(len(last)), side="right") - 1]
    without = grid.seconds.copy()
    without[longest] = (causes.usual * causes.paces)[longest]
    by_length = ends - grid.replay(without)
    by_device = ends - grid.replay(grid.seconds / causes.paces)
    for place, (unit, replica) in enumerate(zip(longest.tolist(), last.tolist(), strict=True)):
        slow = by_device[place] > by_length[place]
        seconds = float(max(by_device[place], by_length[place]))
        number = NO if slow else int(grid.numbers[unit])
        rank = int(grid.ranks[replica, (causes.pace[replica] if slow else excess[unit]).argmax()])
        step = run.steps[place].number
        if seconds > 0:
            seconds *= grid.ranks.size - 1
            why = "device" if slow else "lengths"
            yield LateMicrobatch(step, rank, number, tokens.get((step, rank, number), 0), seconds, why)


def _cannot(causes: PassCauses) -> Iterator[str]:
    grid = causes.grid
    explained = f"passes of a microbatch predict {100 * causes.explained:.0f} % of each other's differences"
    yield f"for certain that lengths are uneven: they are not in these files, and {explained}"
    for replica in np.flatnonzero(causes.longer != 1).tolist():
        ranks = ", ".join(map(str, grid.ranks[replica].tolist()))
        times = causes.longer[replica]
        yield f"whether ranks {ranks} have longer samples or are slow: all take {times:.2f} times as long as others"
    if abs(off := float(grid.replay(grid.seconds).sum() / grid.measured.sum()) - 1) > OFF:
        yield f"all of the step: replayed it takes {1 + off:.2f} times what was measured"
    if len(grid.measured) < 2:
        yield "how much it differs between steps: there is one step, so shares have no interval"
