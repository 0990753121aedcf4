"""Pictures of a run that exists: where its step goes, how ranks differ, its worst step, what other ways would bring."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from odcsim.decide.diagnosis.microbatches import table_of
from odcsim.decide.diagnosis.outcome import PARTS, WORK, Breakdown, Changes
from odcsim.decide.diagnosis.tracks import infer_tracks
from odcsim.errors import InputError
from odcsim.observed.run import Doing, RanStep, SeenRun, Track
from odcsim.plots import style
from odcsim.plots.style import BLUE, COLOURS, DOTTED, GREY, HATCHED, INK, SKY, WAITING, figure, layout, whiskers

MOST = 32  # ranks that are drawn
ROW, FRAME = 24, 150  # pixels of a row, and around all of them
SHOWN = 0.002  # of a step: thinner parts are not drawn
PIECES = 600  # of all ranks of a step together
SLOTS = (480, 240, 120, 60, 24)  # of a rank: as many as come to few enough pieces, or the last

# Of each part a colour, and how it is hatched where a device does nothing.
LOOKS: dict[str, tuple[str, str]] = {
    "compute": (BLUE, ""),
    "padding": (SKY, ""),
    "transfer": (COLOURS["gather"], ""),
    "lengths": (COLOURS["wait_inside"], HATCHED["wait_inside"]),
    "device": (COLOURS["push"], "\\"),
    "stages": (COLOURS["wait_end"], HATCHED["wait_end"]),
    "bubble": (COLOURS["wait_end"], "/"),
    "loader": (COLOURS["head"], ""),
    "collector": (COLOURS["optimizer"], "x"),
    "launch": (COLOURS["optimizer"], ""),
    "edges": (GREY, ""),
    "untold": (GREY, "/"),
}
# What a rank does, and the part that looks like it.
DOINGS = {
    Doing.COMPUTE: ("compute", "compute"),
    Doing.MEETING: ("in a collective: waiting, then transfer", "lengths"),
    Doing.TRANSFER: ("transfers without waiting", "transfer"),
    Doing.STAGE: ("to or from another stage", "stages"),
    Doing.LOADER: ("data loader", "loader"),
    Doing.COLLECTOR: ("garbage collection", "collector"),
    Doing.HOST: ("launch gaps of the host", "launch"),
    Doing.EDGE: ("start and end", "edges"),
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time in which a rank does mostly one thing, in seconds from the step's beginning."""

    doing: Doing
    begin: float
    end: float


def parts(found: Breakdown) -> go.Figure:
    """One bar of the parts, which sum to the step."""
    title = f"{100 * sum(part.share for part in found.parts[3:]):.0f} % of a step is idle"
    words = f"mean over ranks and steps; {WAITING}"
    drawn = figure(title, words, x="share of a step (%)", height=FRAME + 100)
    for part in found.parts:
        if part.share >= SHOWN:
            drawn.add_bar(
                y=["a step"],
                x=[100 * part.share],
                orientation="h",
                name=PARTS[part.name],
                marker=fill(part.name),
                customdata=[(100 * part.low, 100 * part.high)],
                hovertemplate="%{fullData.name}: %{x:.1f} % (%{customdata[0]:.1f} to %{customdata[1]:.1f})"
                "<extra></extra>",
            )
    return drawn.update_layout(barmode="stack").update_xaxes(range=[0, 100.3], dtick=20)


def ranks(found: Breakdown) -> go.Figure:
    """A bar for each rank, of many for those that the others waited for most: compute, waiting, all else."""
    worst = sorted(found.ranks, key=lambda one: (-one.caused, -one.pace, one.rank))[:MOST]
    some = sorted(worst, key=lambda one: one.rank)
    words = f"share of a rank's steps; {WAITING}"
    if len(some) < len(found.ranks):
        words += f"; {len(some)} of {len(found.ranks)} are drawn, those that the others waited for most"
    height = FRAME + ROW * len(some)
    drawn = figure("How ranks differ", words, x="share of a rank's steps (%)", height=height)
    names = [f"rank {one.rank}" for one in some]
    for name, look, shares in (
        ("compute", "compute", [one.compute for one in some]),
        ("waiting", "lengths", [one.waiting for one in some]),
        ("transfers and all else", "edges", [max(0.0, 1 - one.compute - one.waiting) for one in some]),
    ):
        drawn.add_bar(
            y=names,
            x=[100 * share for share in shares],
            orientation="h",
            name=name,
            marker=fill(look),
            hovertemplate="%{y}<br>%{fullData.name}: %{x:.1f} %<extra></extra>",
        )
    drawn.update_layout(barmode="stack", bargap=0.2)
    drawn.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    return drawn.update_xaxes(range=[0, 100.3], dtick=20)


def gains(changes: Changes) -> go.Figure:
    """Bars from 1, each with its interval, the least effort on top."""
    ways = changes.ways
    drawn = figure(
        "How much faster would other ways be?",
        "times as fast on the same samples; lines span the 90 % interval; numbers are those of the table",
        x="times as fast",
        height=FRAME - 20 + 34 * len(ways),
    )
    ends = whiskers([one.gain for one in ways], [one.low for one in ways], [one.high for one in ways])
    drawn.add_bar(
        y=[f"{number}" for number in range(1, len(ways) + 1)],
        x=[one.gain - 1 for one in ways],
        base=1,
        orientation="h",
        marker={"color": [GREY if one.fits is False else BLUE for one in ways]},
        error_x=ends | {"color": INK},
        customdata=[(f"{n} {escape(one.way)}", one.gain, one.low, one.high) for n, one in enumerate(ways, 1)],
        hovertemplate="%{customdata[0]}: %{customdata[1]:.2f} (%{customdata[2]:.2f} to %{customdata[3]:.2f})"
        "<extra></extra>",
        showlegend=False,
    )
    drawn.add_vline(x=1, line=DOTTED)
    return drawn.update_yaxes(autorange="reversed", type="category", showgrid=False)


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
    run, _ = infer_tracks(run, table_of(run.steps))
    idle = [seconds for name, seconds in found.by_step.items() if name not in WORK]
    drawn = [(at, step) for at, step in enumerate(run.steps) if step.tracks and step.seconds > 0]
    shares = [sum(float(of[at]) for of in idle) / step.seconds for at, step in drawn]
    return drawn[int(np.argmax(shares))][1] if drawn else None


def ran_step(step: RanStep) -> go.Figure:
    """A row for each rank, in pieces that can be seen."""
    tracks = choose(step.tracks)
    begin = min(float(track.edges[0]) for track in tracks)
    for slots in SLOTS:
        rows = [(f"rank {track.rank}", stretch) for track in tracks for stretch in coarse(track, begin, slots)]
        if len(rows) <= PIECES:
            break
    words = f"a row for each rank; what it did most in each {1e3 * step.seconds / slots:.3g} ms; {WAITING}"
    words += "" if len(tracks) == len(step.tracks) else f"; {len(tracks)} of {len(step.tracks)} ranks are drawn"
    title, height = f"Step {step.number}, in which most was waiting", FRAME + ROW * len(tracks)
    look = layout(title, words, x="seconds from the start of the step", height=height)
    look |= {"barmode": "overlay", "bargap": 0.2}
    look["yaxis"] |= {"autorange": "reversed", "showgrid": False, "type": "category"}
    traces = []
    for doing in Doing:
        if mine := [(rank, stretch) for rank, stretch in rows if stretch.doing is doing]:
            name, part = DOINGS[doing]
            trace = {
                "type": "bar",
                "y": [rank for rank, _ in mine],
                "x": [round(stretch.end - stretch.begin, 7) for _, stretch in mine],
                "base": [round(stretch.begin, 7) for _, stretch in mine],
                "orientation": "h",
                "name": name,
                "marker": fill(part),
                "hovertemplate": "%{y}<br>%{fullData.name}: %{x:.4g} s<extra></extra>",
            }
            traces.append(trace)
    return go.Figure({"data": traces, "layout": look})


def choose(tracks: Sequence[Track]) -> list[Track]:
    """All of them, or evenly from the one that computes most to the one that computes least."""
    if len(tracks) > MOST:
        busy = sorted(tracks, key=lambda track: -np.diff(track.edges)[track.kinds == Doing.COMPUTE].sum())
        tracks = [busy[round(at)] for at in np.linspace(0, len(busy) - 1, MOST)]
    return sorted(tracks, key=lambda track: track.rank)


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


def fill(part: str) -> dict[str, Any]:
    return style.fill(*LOOKS[part])
