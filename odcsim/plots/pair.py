"""The same minibatch twice: two Gantt charts on one scale, in one figure."""

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from odcsim.plots.gantt import MOST_DEVICES, chart, idle, in_seconds
from odcsim.plots.style import HEAD, layout
from odcsim.timeline import Timeline

_FRAME, _BETWEEN = 190, 40  # pixels around the panels, and from one to the other
_NAMES = 60  # pixels of devices' names, above which a panel's title begins, too


def pair(
    before: Timeline, after: Timeline, minibatch: int = 0, *, number: int | None = None, most: int = MOST_DEVICES
) -> go.Figure:
    """`number` is told where the timelines are cut from longer runs; at most so many devices are drawn."""
    return go.Figure(panels((before, after), minibatch, number=number, most=most))


def panels(timelines: Sequence[Timeline], minibatch: int, *, number: int | None, most: int) -> dict[str, Any]:
    """The figure in plain values, which plotly has not checked yet: that takes longer than all else."""
    spans = [_makespan(timeline, minibatch) for timeline in timelines]
    charts = [chart(timeline, minibatch, until=max(spans), number=number, most=most) for timeline in timelines]
    rows = [drawn["layout"]["height"] - 150 - (HEAD - 80) for drawn in charts]
    whole = sum(rows) + _BETWEEN
    domains = [[1 - rows[0] / whole, 1.0], [0.0, rows[1] / whole]]
    names = [escape(timeline.about.title) for timeline in timelines]
    title = f"{names[1]} runs this minibatch {spans[0] / spans[1]:.2f} times as fast as {names[0]}"
    look = layout(title, charts[0]["layout"]["title"]["subtitle"]["text"], x="", height=_FRAME + whole)
    heads = zip(timelines, domains, strict=True)
    look["annotations"] = [_above(_headline(timeline, minibatch), domain[1]) for timeline, domain in heads]
    look |= {"barmode": "overlay", "bargap": 0.18}
    look["legend"] |= {"y": -60 / sum(rows), "yanchor": "top"}
    axis = charts[0]["layout"]["xaxis"] | {"domain": [0.0, 1.0]}
    look["xaxis"] = {
        "anchor": "y",
        "domain": [0.0, 1.0],
        "matches": "x2",
        "range": axis["range"],
        "showticklabels": False,
    }
    look["xaxis2"] = axis | {"anchor": "y2"}
    for name, anchor, domain in (("yaxis", "x", domains[0]), ("yaxis2", "x2", domains[1])):
        look[name] = {"anchor": anchor, "domain": domain, "autorange": "reversed", "showgrid": False}
    return {"data": _together(charts), "layout": look}


def _above(text: str, y: float) -> dict[str, Any]:
    """A panel's title."""
    at = {"x": 0, "xanchor": "left", "xref": "paper", "xshift": -_NAMES, "y": y, "yanchor": "bottom", "yref": "paper"}
    return {"text": text, "font": {"size": 12}, "showarrow": False, **at}


def _together(charts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bars of each chart, and each kind once in the legend, which switches it in both."""
    traces: list[dict[str, Any]] = []
    seen: set[str] = set()
    for drawn, axes in zip(charts, ({"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}), strict=True):
        for bars in drawn["data"]:
            name = bars["name"]
            traces.append({**bars, **axes, "legendgroup": name, "showlegend": name not in seen})
            seen.add(name)
    return traces


def _headline(timeline: Timeline, minibatch: int) -> str:
    """Short enough for a telephone."""
    spent, lost = _makespan(timeline, minibatch), idle(*timeline.block_of(minibatch))
    return f"{escape(timeline.about.title)}: {in_seconds(spent)}, idle {lost:.0%}"


def _makespan(timeline: Timeline, minibatch: int) -> float:
    block, place = timeline.block_of(minibatch)
    return float(block.had[:, place].max())
