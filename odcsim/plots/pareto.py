"""A picture of what time costs: each offer by hours and dollars, and the front that nothing beats in both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go

from odcsim.plots.axis import Axis, axis
from odcsim.plots.labels import places
from odcsim.plots.style import BLUE, GREY, INK, figure
from odcsim.support.numbers import duration

HEIGHT, ROOM = 460, (620.0, 360.0)  # pixels that names are sure to have; on a telephone page.css leaves the taken one's


@dataclass(frozen=True, slots=True)
class Priced:
    """A point of the picture, with the factors of its 90 % interval."""

    name: str
    seconds: float
    spent: float
    low: float
    high: float
    taken: bool = False  # it is the one to take

    @property
    def hours(self) -> float:
        return self.seconds / 3600


def front(points: Sequence[Priced]) -> list[Priced]:
    """Those that no other beats in time and in money, the fastest first."""
    kept: list[Priced] = []
    for point in sorted(points, key=lambda p: (p.seconds, p.spent)):
        if not kept or point.spent < kept[-1].spent:
            kept.append(point)
    return kept


def pareto(
    points: Sequence[Priced], unit: str, *, deadline: float | None = None, budget: float | None = None
) -> go.Figure:
    """`unit` of what is spent: dollars or GPU-hours; the deadline is in seconds. Axes are as long as offers need:
    what is far from all of them is told in words."""
    best, late = front(points), None if deadline is None else deadline / 3600
    across = axis([p.hours * factor for p in points for factor in (p.low, p.high)], late)
    up = axis([p.spent * factor for p in points for factor in (p.low, p.high)], budget)
    beyond = [] if deadline is None or across.holds(deadline / 3600) else [f"the deadline, {duration(deadline)}"]
    beyond += [] if budget is None or up.holds(budget) else [f"the budget, {budget:,.10g} {unit}"]
    words = "bars are 90 % intervals; the line joins options that no other beats in both time and cost"
    words += f"; beyond the axes: {' and '.join(beyond)}" if beyond else ""
    drawn = figure("What does time cost?", words, x="hours of the whole run", y=unit, height=HEIGHT)
    drawn.add_scatter(
        x=[p.hours for p in best],
        y=[p.spent for p in best],
        mode="lines",
        line={"color": BLUE, "width": 2, "dash": "dot"},
        name="no option is both faster and cheaper",
        hoverinfo="skip",
    )
    where = _places(points, best, across, up)
    _add(drawn, [p for p in points if p in best], BLUE, "on the front", unit, where)
    _add(drawn, [p for p in points if p not in best], GREY, "beaten in both", unit, where)
    if late is not None and across.holds(late):
        _line(drawn, "deadline", (late, late), (up.low, up.high))
    if budget is not None and up.holds(budget):
        _line(drawn, "budget", (across.low, across.high), (budget, budget))
    return drawn.update_xaxes(across.shown()).update_yaxes(up.shown())


def _places(points: Sequence[Priced], best: Sequence[Priced], across: Axis, up: Axis) -> dict[Priced, str]:
    """Of each name: that of the one to take before the others, and the front's before those that are beaten."""
    ordered = sorted(dict.fromkeys(points), key=lambda p: (not p.taken, p not in best))
    pixels = [(across.at(p.hours) * ROOM[0], up.at(p.spent) * ROOM[1]) for p in ordered]
    return dict(zip(ordered, places(pixels, [p.name for p in ordered], ROOM), strict=True))


def _line(drawn: go.Figure, name: str, x: tuple[float, float], y: tuple[float, float]) -> None:
    drawn.add_scatter(
        x=x, y=y, mode="lines", line={"color": INK, "width": 1.5, "dash": "dash"}, name=name, hoverinfo="name"
    )


def _add(
    drawn: go.Figure, points: Sequence[Priced], colour: str, name: str, unit: str, where: Mapping[Priced, str]
) -> None:
    """Who has no room for a name tells it where one points."""
    if not points:
        return
    named = [f"<b>{escape(p.name)}</b>" if p.taken else escape(p.name) for p in points]
    drawn.add_scatter(
        x=[p.hours for p in points],
        y=[p.spent for p in points],
        error_x=_bars(points, [p.hours for p in points]),
        error_y=_bars(points, [p.spent for p in points]),
        mode="markers+text",
        text=[words if where[p] else "" for p, words in zip(points, named, strict=True)],
        textposition=[where[p] or "top right" for p in points],
        marker={"color": colour, "size": [15 if p.taken else 10 for p in points]},
        name=name,
        customdata=[[words, duration(p.seconds)] for p, words in zip(points, named, strict=True)],
        hovertemplate=f"%{{customdata[0]}}: %{{customdata[1]}}, %{{y:,.0f}} {unit}<extra></extra>",
    )


def _bars(points: Sequence[Priced], values: Sequence[float]) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [v * (p.high - 1) for p, v in zip(points, values, strict=True)],
        "arrayminus": [v * (1 - p.low) for p, v in zip(points, values, strict=True)],
        "thickness": 1,
        "width": 3,
    }
