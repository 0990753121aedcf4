"""The picture of one step of a run that exists: a row for each rank, in pieces that can be seen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from odcsim.decide.diagnosis.computed import table_of
from odcsim.decide.diagnosis.found import Breakdown
from odcsim.decide.diagnosis.inferred import tracked
from odcsim.decide.diagnosis.words import WORK
from odcsim.errors import InputError
from odcsim.observed.run import Doing, RanStep, SeenRun, Track
from odcsim.plots.diagnosis import FRAME, MOST, ROW, fill
from odcsim.plots.style import layout

PIECES = 600  # of all ranks together
SLOTS = (480, 240, 120, 60, 24)  # of a rank: as many as come to few enough pieces, or the last
NAMES = {
    Doing.COMPUTE: "compute",
    Doing.MEETING: "in a collective: waiting, then transfer",
    Doing.TRANSFER: "transfers without waiting",
    Doing.STAGE: "to or from another stage",
    Doing.LOADER: "data loader",
    Doing.COLLECTOR: "garbage collection",
    Doing.HOST: "launch gaps of the host",
    Doing.EDGE: "start and end",
}
_LOOK_OF = {
    Doing.COMPUTE: "compute",
    Doing.MEETING: "lengths",
    Doing.TRANSFER: "transfer",
    Doing.STAGE: "stages",
    Doing.LOADER: "loader",
    Doing.COLLECTOR: "collector",
    Doing.HOST: "launch",
    Doing.EDGE: "edges",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time in which a rank does mostly one thing, in seconds from the step's beginning."""

    doing: Doing
    begin: float
    end: float


def worst_step(run: SeenRun, found: Breakdown) -> go.Figure:
    """Of the step of which most is waiting; where nobody told compute from waiting, by what is inferred of it."""
    step = worst(run, found)
    if step is None:
        fix = "profiler traces, timelines and the watcher's files have it"
        raise InputError("what ranks did within a step is not known", where=run.source, fix=fix)
    return ran_step(step)


def worst(run: SeenRun, found: Breakdown) -> RanStep | None:
    if not any(step.tracks or step.microbatches for step in run.steps):
        return None
    run, _ = tracked(run, table_of(run.steps))
    lost = [seconds for name, seconds in found.by_step.items() if name not in WORK]
    drawn = [(at, step) for at, step in enumerate(run.steps) if step.tracks and step.seconds > 0]
    shares = [sum(float(of[at]) for of in lost) / step.seconds for at, step in drawn]
    return drawn[int(np.argmax(shares))][1] if drawn else None


def ran_step(step: RanStep) -> go.Figure:
    of = len(step.tracks)
    tracks = chosen(step.tracks)
    begin = min(float(track.edges[0]) for track in tracks)
    for slots in SLOTS:
        rows = [(track.rank, list(coarse(track, begin, slots))) for track in tracks]
        if sum(len(stretches) for _, stretches in rows) <= PIECES:
            break
    few = "" if len(tracks) == of else f"; {len(tracks)} of {of} ranks are drawn"
    look = layout(
        f"Step {step.number}, in which most was waiting",
        f"a row for each rank; what it did most in each {_each(step, slots)}{few}",
        x="seconds from the start of the step",
        height=FRAME + ROW * len(tracks),
    )
    look |= {"barmode": "overlay", "bargap": 0.2}
    look["yaxis"] |= {"autorange": "reversed", "showgrid": False, "type": "category"}
    traces = [_trace(doing, rows) for doing in Doing if any(s.doing is doing for _, some in rows for s in some)]
    return go.Figure({"data": traces, "layout": look})


def chosen(tracks: Sequence[Track]) -> list[Track]:
    """All of them, or evenly from the one that computes most to the one that computes least."""
    if len(tracks) <= MOST:
        return sorted(tracks, key=lambda track: track.rank)
    busy = sorted(tracks, key=lambda track: -_seconds(track, Doing.COMPUTE))
    picked = [busy[round(at)] for at in np.linspace(0, len(busy) - 1, MOST)]
    return sorted(picked, key=lambda track: track.rank)


def coarse(track: Track, begin: float, slots: int) -> Iterator[Stretch]:
    """What a rank did most in each of so many equal slots of its step; slots alike are one."""
    first, last = float(track.edges[0]), float(track.edges[-1])
    bounds = np.linspace(first, last, slots + 1)
    sums = np.zeros((len(Doing), slots + 1))
    for doing in Doing:
        mine = np.where(track.kinds == doing, np.diff(track.edges), 0.0)
        sums[doing] = np.interp(bounds, track.edges, np.concatenate([[0.0], np.cumsum(mine)]))
    most = np.diff(sums, axis=1).argmax(axis=0)
    starts = [0, *(np.flatnonzero(np.diff(most)) + 1).tolist(), slots]
    for start, end in pairwise(starts):
        yield Stretch(Doing(int(most[start])), float(bounds[start] - begin), float(bounds[end] - begin))


def _seconds(track: Track, doing: Doing) -> float:
    return float(np.diff(track.edges)[track.kinds == doing].sum())


def _each(step: RanStep, slots: int) -> str:
    return f"{1e3 * step.seconds / slots:.3g} ms"


def _trace(doing: Doing, rows: Sequence[tuple[int, Sequence[Stretch]]]) -> dict[str, Any]:
    mine = [(rank, stretch) for rank, some in rows for stretch in some if stretch.doing is doing]
    return {
        "type": "bar",
        "y": [f"rank {rank}" for rank, _ in mine],
        "x": [round(stretch.end - stretch.begin, 7) for _, stretch in mine],
        "base": [round(stretch.begin, 7) for _, stretch in mine],
        "orientation": "h",
        "name": NAMES[doing],
        "marker": fill(_LOOK_OF[doing]),
        "hovertemplate": "%{y}<br>%{fullData.name}: %{x:.4g} s<extra></extra>",
    }
