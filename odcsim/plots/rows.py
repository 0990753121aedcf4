"""Pictures of a comparison's rows: where device time goes, what each row gains, how that moves with the limit."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from odcsim.plots.style import BLUE, COLOURS, GREY, INK, NAMES, SKY, by_speed, figure, find, label, marker
from odcsim.results.metrics import PARTS
from odcsim.results.summary import REFERENCE, Row

ROW_PIXELS, FRAME_PIXELS = 27, 170
ORANGE = COLOURS["wait_end"]
_CURVES = (
    ("lb-mini", "on-demand", BLUE, "solid"),
    ("lb-micro", "on-demand", SKY, "solid"),
    ("sorted-slice", "collective", GREY, "dash"),
)


def idle(rows: Sequence[Row]) -> go.Figure:
    """Stacked shares of device time: compute, then the parts of idle."""
    ordered = by_speed(rows)
    title = "Where does device time go?"
    before, best = find(rows, *REFERENCE), _runnable(ordered)[-1]
    if before is not None and best.makespan_seconds > 0.999 * before.makespan_seconds:
        title = f"Devices idle {before.idle:.0%} of the time under {label(before)}, and no row is faster"
    elif before is not None:
        title = f"Devices idle {before.idle:.0%} of the time under {label(before)}, {best.idle:.0%} under {label(best)}"
    subtitle = "share of device time, shortest makespan on top"
    drawn = figure(title, subtitle, x="share of device time (%)", height=FRAME_PIXELS + ROW_PIXELS * len(rows))
    shares = {"compute": [1 - r.idle for r in ordered]} | {p: [r.idle_parts[p] for r in ordered] for p in PARTS}
    for part, values in shares.items():
        if any(v > 0.0005 for v in values):
            drawn.add_bar(
                y=[label(r) for r in ordered],
                x=[100 * v for v in values],
                orientation="h",
                name=NAMES[part],
                marker=marker(part),
                hovertemplate="%{y}<br>%{fullData.name}: %{x:.1f} %<extra></extra>",
            )
    drawn.update_layout(barmode="stack", bargap=0.28)
    drawn.update_yaxes(categoryorder="array", categoryarray=[label(r) for r in ordered])
    return drawn.update_xaxes(range=[0, 100.3], dtick=20)


def speedups(rows: Sequence[Row]) -> go.Figure:
    """Throughput over collective + lb-micro as bars from 1, with intervals; beneath each that over the best collective
    row, so that no mark covers another."""
    ordered = [r for r in by_speed(rows) if r.speedup is not None]
    drawn = figure(
        _speedup_title(ordered),
        "speedup on the same samples, to the left of 1 where slower; lines span the 95 % interval of the draw",
        x="speedup (times as fast)",
        height=FRAME_PIXELS + ROW_PIXELS * len(ordered),
    )
    drawn.add_vline(x=1, line={"color": INK, "dash": "dot", "width": 1.5})
    places = list(enumerate(ordered))
    for name, colour, faster in (("over collective + lb-micro", BLUE, True), ("slower than it", ORANGE, False)):
        if some := [(at, r) for at, r in places if ((r.speedup or 0) >= 1) is faster]:
            drawn.add_bar(**_from_one(some), name=name, marker={"color": colour})
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


def _from_one(places: Sequence[tuple[int, Row]]) -> dict[str, Any]:
    """Bars from 1, each with its interval."""
    rows = [r for _, r in places]
    return {
        "y": [at + 0.17 for at, _ in places],
        "width": 0.42,
        "x": [(r.speedup or 0) - 1 for r in rows],
        "base": 1,
        "orientation": "h",
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(r.speedup_high or 0) - (r.speedup or 0) for r in rows],
            "arrayminus": [(r.speedup or 0) - (r.speedup_low or 0) for r in rows],
            "thickness": 1.5,
            "width": 4,
            "color": INK,
        },
        "customdata": [(label(r), r.speedup, r.speedup_low, r.speedup_high) for r in rows],
        "hovertemplate": "%{customdata[0]}: %{customdata[1]:.3f} (%{customdata[2]:.3f} to %{customdata[3]:.3f})"
        "<extra></extra>",
    }


def sweep(points: Sequence[tuple[int, Sequence[Row]]]) -> go.Figure:
    """How speedups over collective + lb-micro move with the token limit of a microbatch."""
    ordered = sorted(points, key=lambda point: point[0])
    drawn = figure(
        "Does the answer hang on the token limit?",
        "speedup over collective + lb-micro at the same limit, with its 95 % interval; x: does not fit in memory",
        x="tokens of a microbatch at most (--max-tokens)",
        y="speedup (times as fast)",
        height=430,
    )
    drawn.add_hline(y=1, line={"color": INK, "dash": "dot", "width": 1.5})
    for balancer, sync, colour, dash in _CURVES:
        line = [(at, r) for at, rows in ordered if (r := find(rows, balancer, sync)) and r.speedup is not None]
        drawn.add_scatter(
            x=[at for at, _ in line],
            y=[r.speedup for _, r in line],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [(r.speedup_high or 0) - (r.speedup or 0) for _, r in line],
                "arrayminus": [(r.speedup or 0) - (r.speedup_low or 0) for _, r in line],
                "thickness": 1.5,
                "width": 4,
            },
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            marker={"size": 8, "symbol": ["circle" if r.memory_fits is not False else "x" for _, r in line]},
            name=f"{sync} + {balancer}",
            hovertemplate="%{x:,} tokens: %{y:.3f}<extra>%{fullData.name}</extra>",
        )
    return _limits(drawn, ordered)


def ceiling(points: Sequence[tuple[int, Sequence[Row]]], limit: float | None) -> go.Figure:
    """What memory a device needs at each token limit, and what it has (bytes)."""
    ordered = sorted(points, key=lambda point: point[0])
    drawn = figure(
        "Does it fit memory?",
        "memory of the device that needs most" + ("; orange: what a GPU has" if limit else ""),
        x="tokens of a microbatch at most (--max-tokens)",
        y="GB",
        height=330,
    )
    for balancer, sync, colour, dash in _CURVES:
        line = [
            (at, r.memory_bytes / 1e9) for at, rows in ordered if (r := find(rows, balancer, sync)) and r.memory_bytes
        ]
        drawn.add_scatter(
            x=[at for at, _ in line],
            y=[size for _, size in line],
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            marker={"size": 8},
            name=f"{sync} + {balancer}",
            hovertemplate="%{x:,} tokens: %{y:.1f} GB<extra>%{fullData.name}</extra>",
        )
    if limit:
        drawn.update_yaxes(
            range=[0, 1.1 * max(limit, *(r.memory_bytes or 0 for _, rows in ordered for r in rows)) / 1e9]
        )
        drawn.add_hline(y=limit / 1e9, line={"color": ORANGE, "width": 2})
    return _limits(drawn.update_yaxes(rangemode="tozero"), ordered)


def _limits(drawn: go.Figure, ordered: Sequence[tuple[int, Sequence[Row]]]) -> go.Figure:
    """The limits that were tried, as an axis."""
    limits = [at for at, _ in ordered]
    return drawn.update_xaxes(type="log", tickvals=limits, ticktext=[f"{at:,}" for at in limits])


def _runnable(ordered: Sequence[Row]) -> list[Row]:
    """Without what does not fit, where anything does."""
    return [r for r in ordered if r.memory_fits is not False] or [*ordered]


def _speedup_title(ordered: Sequence[Row]) -> str:
    mine = [r for r in _runnable(ordered) if r.one_sided]
    if not mine or mine[-1].speedup is None:
        return "What does each row gain over collective + lb-micro?"
    best = mine[-1]
    over = f"{best.speedup:.2f} times as fast as collective + lb-micro"
    return f"{label(best)}: {over}, {best.speedup_best_collective:.2f} times as fast as the best collective row"
