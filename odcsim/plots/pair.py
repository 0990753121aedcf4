"""The same minibatch twice: two Gantt charts on one scale, in one figure."""

from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from odcsim.plots.gantt import MOST_DEVICES, gantt, idle, in_seconds
from odcsim.plots.style import HEAD, figure
from odcsim.timeline import Timeline

_FRAME = 190
_NAMES = 60  # pixels of devices' names, above which a panel's title begins, too


def pair(
    before: Timeline, after: Timeline, minibatch: int = 0, *, number: int | None = None, most: int = MOST_DEVICES
) -> go.Figure:
    """`number` is told where the timelines are cut from longer runs; at most so many devices are drawn."""
    spans = [_makespan(timeline, minibatch) for timeline in (before, after)]
    charts = [gantt(timeline, minibatch, until=max(spans), number=number, most=most) for timeline in (before, after)]
    rows = [chart.layout.height - 150 - (HEAD - 80) for chart in charts]
    drawn = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=40 / (sum(rows) + 40),
        row_heights=rows,
        subplot_titles=[_headline(timeline, minibatch) for timeline in (before, after)],
    )
    names = [escape(timeline.about.title) for timeline in (before, after)]
    title = f"{names[1]} runs this minibatch {spans[0] / spans[1]:.2f} times as fast as {names[0]}"
    subtitle = charts[0].layout.title.subtitle.text
    drawn.update_layout(figure(title, subtitle, x="", height=_FRAME + 40 + sum(rows)).layout)
    _take(drawn, charts)
    drawn.update_annotations(x=0, xanchor="left", xshift=-_NAMES, font={"size": 12})
    drawn.update_layout(barmode="overlay", bargap=0.18)
    drawn.update_layout(legend={"y": -60 / sum(rows), "yanchor": "top"})
    drawn.update_yaxes(autorange="reversed", showgrid=False)
    drawn.update_xaxes(range=charts[0].layout.xaxis.range)
    return drawn.update_xaxes(title=charts[0].layout.xaxis.title.text, row=2)


def _take(drawn: go.Figure, charts: list[go.Figure]) -> None:
    """The bars of each chart, and each kind once in the legend, which switches it in both."""
    seen: set[str] = set()
    for row, chart in enumerate(charts, 1):
        for bars in chart.data:
            bars.update(legendgroup=bars.name, showlegend=bars.name not in seen)
            seen.add(bars.name)
            drawn.add_trace(bars, row=row, col=1)


def _headline(timeline: Timeline, minibatch: int) -> str:
    """Short enough for a telephone."""
    spent, lost = _makespan(timeline, minibatch), idle(*timeline.block_of(minibatch))
    return f"{escape(timeline.about.title)}: {in_seconds(spent)}, idle {lost:.0%}"


def _makespan(timeline: Timeline, minibatch: int) -> float:
    block, place = timeline.block_of(minibatch)
    return float(block.had[:, place].max())
