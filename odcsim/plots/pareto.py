"""A picture of what time costs: each offer by hours and dollars, and the front that nothing beats in both."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go

from odcsim.plots.style import BLUE, GREY, INK, figure
from odcsim.support.numbers import duration


@dataclass(frozen=True, slots=True)
class Priced:
    """A point of the picture, with the factors of its 90 % interval."""

    name: str
    seconds: float
    spent: float
    low: float
    high: float
    taken: bool = False  # it is the one to take


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
    """`unit` of what is spent: dollars or GPU-hours; the deadline is in seconds."""
    best = front(points)
    drawn = figure(
        "What does time cost?",
        "bars are 90 % intervals; the line joins what nothing beats in both",
        x="hours of the whole run",
        y=unit,
        height=460,
    )
    drawn.add_scatter(
        x=[p.seconds / 3600 for p in best],
        y=[p.spent for p in best],
        mode="lines",
        line={"color": BLUE, "width": 2, "dash": "dot"},
        name="nothing is both faster and cheaper",
        hoverinfo="skip",
    )
    _add(drawn, [p for p in points if p in best], BLUE, "on the front", unit)
    _add(drawn, [p for p in points if p not in best], GREY, "beaten in both", unit, "bottom right")
    if deadline is not None:
        drawn.add_vline(
            x=deadline / 3600,
            line={"color": INK, "dash": "dash"},
            annotation_text="deadline",
            annotation_position="bottom left",
        )
    if budget is not None:
        drawn.add_hline(
            y=budget, line={"color": INK, "dash": "dash"}, annotation_text="budget", annotation_position="top left"
        )
    return drawn.update_xaxes(rangemode="tozero").update_yaxes(rangemode="tozero")


def _add(drawn: go.Figure, points: Sequence[Priced], colour: str, name: str, unit: str, at: str = "top right") -> None:
    if not points:
        return
    hours = [p.seconds / 3600 for p in points]
    drawn.add_scatter(
        x=hours,
        y=[p.spent for p in points],
        error_x=_bars(points, hours),
        error_y=_bars(points, [p.spent for p in points]),
        mode="markers+text",
        text=[f"<b>{escape(p.name)}</b>" if p.taken else escape(p.name) for p in points],
        textposition=at,
        marker={"color": colour, "size": [15 if p.taken else 10 for p in points]},
        name=name,
        customdata=[duration(p.seconds) for p in points],
        hovertemplate=f"%{{text}}: %{{customdata}}, %{{y:,.0f}} {unit}<extra></extra>",
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
