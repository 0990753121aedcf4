"""Pictures of a run that exists: where its step goes, how ranks differ, its worst step, what other ways would bring."""

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from odcsim.decide.diagnosis.found import PARTS, Breakdown, Changes, RankFound
from odcsim.plots.style import BLUE, COLOURS, GREY, HATCHED, INK, SKY, figure

MOST = 32  # ranks that are drawn
ROW, FRAME = 24, 150  # pixels of a row, and around all of them
SHOWN = 0.002  # of a step: thinner parts are not drawn

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


def parts(found: Breakdown) -> go.Figure:
    """One bar of the parts, which sum to the step."""
    lost = sum(part.share for part in found.parts[3:])
    drawn = figure(
        f"{100 * lost:.0f} % of a step is idle",
        "mean over ranks and steps; hatched: waiting for others",
        x="share of a step (%)",
        height=FRAME + 100,
    )
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
    of, every = len(found.ranks), _worst(found.ranks)
    names = [f"rank {one.rank}" for one in every]
    drawn = figure(
        "How ranks differ",
        f"share of a rank's steps{_chosen(len(every), of)}",
        x="share of a rank's steps (%)",
        height=FRAME + ROW * len(every),
    )
    shares = {
        "compute": [one.compute for one in every],
        "waiting": [one.waiting for one in every],
        "transfers and all else": [max(0.0, 1 - one.compute - one.waiting) for one in every],
    }
    looks = {"compute": fill("compute"), "waiting": fill("lengths"), "transfers and all else": fill("edges")}
    for name, values in shares.items():
        drawn.add_bar(
            y=names,
            x=[100 * value for value in values],
            orientation="h",
            name=name,
            marker=looks[name],
            hovertemplate="%{y}<br>%{fullData.name}: %{x:.1f} %<extra></extra>",
        )
    drawn.update_layout(barmode="stack", bargap=0.2)
    drawn.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    return drawn.update_xaxes(range=[0, 100.3], dtick=20)


def gains(changes: Changes) -> go.Figure:
    """Bars from 1, each with its interval, the least effort on top."""
    ways = changes.ways
    names = [f"{number}" for number in range(1, len(ways) + 1)]
    told = [f"{number} {escape(one.way)}" for number, one in zip(names, ways, strict=True)]
    drawn = figure(
        "How much faster would other ways be?",
        "times as fast on the same samples; lines span the 90 % interval; numbers are those of the table",
        x="times as fast",
        height=FRAME - 20 + 34 * len(ways),
    )
    drawn.add_bar(
        y=names,
        x=[one.gain - 1 for one in ways],
        base=1,
        orientation="h",
        marker={"color": [GREY if one.fits is False else BLUE for one in ways]},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [one.high - one.gain for one in ways],
            "arrayminus": [one.gain - one.low for one in ways],
            "thickness": 1.5,
            "width": 4,
            "color": INK,
        },
        customdata=[(name, one.gain, one.low, one.high) for name, one in zip(told, ways, strict=True)],
        hovertemplate="%{customdata[0]}: %{customdata[1]:.2f} (%{customdata[2]:.2f} to %{customdata[3]:.2f})"
        "<extra></extra>",
        showlegend=False,
    )
    drawn.add_vline(x=1, line={"color": INK, "dash": "dot", "width": 1.5})
    return drawn.update_yaxes(autorange="reversed", type="category", showgrid=False)


def fill(part: str) -> dict[str, Any]:
    """Solid for what a device does, hatched for what it waits for."""
    colour, hatch = LOOKS[part]
    if not hatch:
        return {"color": colour, "line": {"width": 0}}
    pattern = {"shape": hatch, "fgcolor": colour, "bgcolor": "rgba(0,0,0,0)", "size": 6, "solidity": 0.35}
    return {"color": colour, "pattern": pattern, "line": {"width": 0.6, "color": colour}}


def _worst(every: Sequence[RankFound]) -> list[RankFound]:
    kept = sorted(every, key=lambda one: (-one.caused, -one.pace, one.rank))[:MOST]
    return sorted(kept, key=lambda one: one.rank)


def _chosen(drawn: int, of: int) -> str:
    return "" if drawn == of else f"; {drawn} of {of} are drawn, those that the others waited for most"
