"""Pictures of a comparison's rows: where device time goes, what each row gains, how that moves with what is changed."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from odcsim.plots.style import BLUE, COLOURS, DOTTED, GREY, HATCHED, INK, SKY, WAITING, figure, marker, whiskers
from odcsim.results.metrics import PARTS
from odcsim.results.summary import REFERENCE, Row
from odcsim.say.timeline_words import NAMES

ROW_PIXELS, FRAME_PIXELS = 27, 170
ORANGE = COLOURS["wait_end"]
LIMITS = "tokens of a microbatch at most (--max-tokens)"
_CURVES = (
    ("lb-mini", "on-demand", BLUE, "solid"),
    ("lb-micro", "on-demand", SKY, "solid"),
    ("sorted-slice", "collective", GREY, "dash"),
)


def label(row: Row) -> str:
    name = escape(row.name)
    return f"<b>{name}</b>" if row.one_sided else name


def idle(rows: Sequence[Row]) -> go.Figure:
    """Stacked shares of device time: compute, then the parts of idle."""
    ordered = _by_speed(rows)
    title = "Where does device time go?"
    before, best = next((r for r in rows if r.pair == REFERENCE), None), _runnable(ordered)[-1]
    if before is not None and best.makespan_seconds > 0.999 * before.makespan_seconds:
        title = f"Devices idle {before.idle:.0%} of the time under {label(before)}, and no row is faster"
    elif before is not None:
        title = f"Devices idle {before.idle:.0%} of the time under {label(before)}, {best.idle:.0%} under {label(best)}"
    shares = {"compute": [1 - r.idle for r in ordered]} | {p: [r.idle_parts[p] for r in ordered] for p in PARTS}
    shares = {part: values for part, values in shares.items() if any(v > 0.0005 for v in values)}
    subtitle = "share of device time, shortest makespan on top"
    subtitle += f"; {WAITING}" if HATCHED.keys() & shares else ""
    drawn = figure(title, subtitle, x="share of device time (%)", height=FRAME_PIXELS + ROW_PIXELS * len(rows))
    for part, values in shares.items():
        drawn.add_bar(
            y=[label(r) for r in ordered],
            x=[100 * v for v in values],
            orientation="h",
            name=NAMES[part],
            showlegend=True,
            marker=marker(part),
            hovertemplate="%{y}<br>%{fullData.name}: %{x:.1f} %<extra></extra>",
        )
    drawn.update_layout(barmode="stack", bargap=0.28)
    drawn.update_yaxes(categoryorder="array", categoryarray=[label(r) for r in ordered])
    return drawn.update_xaxes(range=[0, 100.3], dtick=20)


def speedups(rows: Sequence[Row]) -> go.Figure:
    """Throughput over collective + lb-micro as bars from 1, with intervals; beneath each that over the best collective
    row, so that no mark covers another."""
    ordered = [r for r in _by_speed(rows) if r.speedup is not None]
    title = "What does each row gain over collective + lb-micro?"
    if mine := [r for r in _runnable(ordered) if r.one_sided]:
        best = mine[-1]
        title = f"{label(best)}: {best.speedup:.2f} times as fast as collective + lb-micro, "
        title += f"{best.speedup_best_collective:.2f} times as fast as the best collective row"
    drawn = figure(
        title,
        "speedup on the same samples, to the left of 1 where slower; lines span the 95 % interval of the draw",
        x="speedup (times as fast)",
        height=FRAME_PIXELS + ROW_PIXELS * len(ordered),
    )
    drawn.add_vline(x=1, line=DOTTED)
    places = list(enumerate(ordered))
    for name, colour, faster in (("over collective + lb-micro", BLUE, True), ("slower than it", ORANGE, False)):
        if some := [(at, r) for at, r in places if ((r.speedup or 0) >= 1) is faster]:
            drawn.add_bar(
                y=[at + 0.17 for at, _ in some],
                width=0.42,
                x=[(r.speedup or 0) - 1 for _, r in some],
                base=1,
                orientation="h",
                error_x=_between([r for _, r in some]) | {"color": INK},
                customdata=[(label(r), r.speedup, r.speedup_low, r.speedup_high) for _, r in some],
                hovertemplate="%{customdata[0]}: %{customdata[1]:.3f} (%{customdata[2]:.3f} to %{customdata[3]:.3f})"
                "<extra></extra>",
                name=name,
                marker={"color": colour},
            )
    drawn.add_scatter(
        y=[at - 0.33 for at, _ in places],
        x=[r.speedup_best_collective for r in ordered],
        mode="markers",
        marker={"symbol": "diamond-open", "size": 7, "color": COLOURS["wait_inside"], "line": {"width": 2}},
        name="over the best collective row",
        customdata=[label(r) for r in ordered],
        hovertemplate="%{customdata}: %{x:.3f} over the best collective row<extra></extra>",
    )
    names = {"tickvals": [at for at, _ in places], "ticktext": [label(r) for r in ordered]}
    return drawn.update_yaxes(**names, range=[-0.75, len(ordered) - 0.35], showgrid=False)


def sweep(points: Sequence[tuple[int, Sequence[Row]]]) -> go.Figure:
    """How speedups over collective + lb-micro move with the token limit of a microbatch."""
    subtitle = "speedup over collective + lb-micro at the same limit, with its 95 % interval; x: does not fit in memory"
    drawn = figure(
        "Does the answer hang on the token limit?", subtitle, x=LIMITS, y="speedup (times as fast)", height=430
    )
    drawn.add_hline(y=1, line=DOTTED)
    for line, look in _curves(points):
        inside = [(at, r) for at, r in line if r.speedup is not None]
        drawn.add_scatter(
            x=[at for at, _ in inside],
            y=[r.speedup for _, r in inside],
            error_y=_between([r for _, r in inside]),
            marker={"size": 8, "symbol": ["circle" if r.memory_fits is not False else "x" for _, r in inside]},
            hovertemplate="%{x:,} tokens: %{y:.3f}<extra>%{fullData.name}</extra>",
            **look,
        )
    return _limits(drawn, points)


def ceiling(points: Sequence[tuple[int, Sequence[Row]]], limit: float | None) -> go.Figure:
    """What memory a device needs at each token limit, and what it has (bytes)."""
    subtitle = "memory of the device that needs most" + ("; orange: what a GPU has" if limit else "")
    drawn = figure("Does it fit memory?", subtitle, x=LIMITS, y="GB", height=330)
    for line, look in _curves(points):
        inside = [(at, r.memory_bytes / 1e9) for at, r in line if r.memory_bytes]
        drawn.add_scatter(
            x=[at for at, _ in inside],
            y=[size for _, size in inside],
            marker={"size": 8},
            hovertemplate="%{x:,} tokens: %{y:.1f} GB<extra>%{fullData.name}</extra>",
            **look,
        )
    if limit:
        most = max(limit, *(r.memory_bytes or 0 for _, rows in points for r in rows))
        drawn.update_yaxes(range=[0, 1.1 * most / 1e9])
        drawn.add_hline(y=limit / 1e9, line={"color": ORANGE, "width": 2})
    return _limits(drawn.update_yaxes(rangemode="tozero"), points)


def lead(name: str, labels: Sequence[str], leads: Sequence[float | None], here: str, worth: float) -> go.Figure:
    """On-demand's lead as one thing is changed. `worth`: the lead from which on it pays; `here`: the label of the
    question's own value."""
    words = "speedup of on-demand over the best without it; dotted: from here on it pays; large: what you asked about"
    drawn = figure(name, words, x=name, y="times as fast", height=300)
    drawn.add_hline(y=worth, line=DOTTED)
    drawn.add_scatter(
        x=list(labels),
        y=list(leads),
        mode="lines+markers",
        line={"color": BLUE, "width": 2.5},
        marker={"size": [13 if label == here else 7 for label in labels], "color": BLUE},
        showlegend=False,
        hovertemplate="%{x}: %{y:.2f}<extra></extra>",
    )
    return drawn.update_xaxes(type="category")


def _by_speed(rows: Sequence[Row]) -> list[Row]:
    """The slowest first: plotly draws bars from the bottom up."""
    return sorted(rows, key=lambda r: r.makespan_seconds)[::-1]


def _runnable(ordered: Sequence[Row]) -> list[Row]:
    """Without what does not fit, where anything does."""
    return [r for r in ordered if r.memory_fits is not False] or [*ordered]


def _between(rows: Sequence[Row]) -> dict[str, Any]:
    ends = ([r.speedup_low or 0 for r in rows], [r.speedup_high or 0 for r in rows])
    return whiskers([r.speedup or 0 for r in rows], *ends)


def _curves(points: Sequence[tuple[int, Sequence[Row]]]) -> Iterator[tuple[list[tuple[int, Row]], dict[str, Any]]]:
    """A few rows at each limit, and how their lines look."""
    for balancer, sync, colour, dash in _CURVES:
        line = [(at, r) for at, rows in sorted(points, key=lambda p: p[0]) for r in rows if r.pair == (balancer, sync)]
        style = {"color": colour, "dash": dash, "width": 2.5}
        yield line, {"mode": "lines+markers", "line": style, "name": f"{sync} + {balancer}"}


def _limits(drawn: go.Figure, points: Sequence[tuple[int, Sequence[Row]]]) -> go.Figure:
    """The limits that were tried, as an axis."""
    limits = sorted(at for at, _ in points)
    return drawn.update_xaxes(type="log", tickvals=limits, ticktext=[f"{at:,}" for at in limits])
