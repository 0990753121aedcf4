"""Pictures of what the engine measures: how fast bytes move, what training comes to, how near a prediction was."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from odcsim.plots.style import AXIS, BLUE, COLOURS, DOTTED, GREY, INK, SKY, figure

_WAYS = {
    "memcpy, all": (INK, "dot"),
    "gather": (BLUE, "solid"),
    "gather, lockstep": (SKY, "dash"),
    "gather, gloo": (GREY, "dash"),
    "push, locked": (COLOURS["push"], "solid"),
    "push, slots": (COLOURS["gather"], "solid"),
    "push, lockstep": (COLOURS["wait_end"], "dash"),
    "push, gloo": (COLOURS["wait_inside"], "dash"),
}
_CURVES = {
    "collective": (INK, "solid"),
    "deferred": (COLOURS["wait_end"], "dash"),
    "on-demand + lb-micro": (SKY, "dash"),
    "on-demand + lb-mini": (BLUE, "dot"),
}


def bandwidth(rates: Sequence[Mapping[str, Any]], hardware: str) -> go.Figure:
    """Rates over sizes, a panel for each number of devices, both axes logarithmic."""
    devices = sorted({r["devices"] for r in rates})
    titles = [f"{n} devices" for n in devices]
    look = {"shared_yaxes": True, "horizontal_spacing": 0.03, "subplot_titles": titles}
    drawn = make_subplots(rows=1, cols=len(devices), **look)
    subtitle = f"bytes of the full tensor over the time of the slowest device; {escape(hardware)}"
    title = "How fast do gathers and pushes move bytes?"
    drawn.update_layout(figure(title, subtitle, x="", height=520).layout)
    legend = {"y": -0.24, "yanchor": "top", "entrywidth": 150}
    drawn.update_layout(margin={"t": 120, "l": 20}, legend=legend, title={"x": 0.02})
    for column, n in enumerate(devices, 1):
        for way, (colour, dash) in _WAYS.items():
            points = [r for r in rates if r["devices"] == n and r["way"] == way]
            drawn.add_scatter(
                x=[r["bytes"] for r in points],
                y=[r["gb_per_second"] for r in points],
                name=way,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2.5},
                showlegend=column == 1,
                row=1,
                col=column,
            )
    sizes = sorted({r["bytes"] for r in rates})
    names = [f"{s >> 20} MB" if s >= 1 << 20 else f"{s >> 10} KB" for s in sizes]
    drawn.update_xaxes(type="log", tickvals=sizes, ticktext=names, title="full tensor", **AXIS)
    drawn.update_yaxes(type="log", dtick=1, **AXIS)
    return drawn.update_yaxes(title="GB/s", col=1)


def convergence(curves: Mapping[str, Sequence[float]]) -> go.Figure:
    """Losses over each other; below, how far each run is from the collective one."""
    drawn = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.55, 0.45])
    title = "Does it learn the same under every sync?"
    subtitle = "loss of each minibatch; below, its distance from the collective run (grey: the same in other orders)"
    drawn.update_layout(figure(title, subtitle, x="", height=620).layout)
    drawn.update_layout(margin={"t": 140, "l": 20}, title={"x": 0.02})
    base = np.array(curves["collective"])
    for name, values in curves.items():
        colour, dash = _CURVES.get(name, (GREY, "solid"))
        own = name in _CURVES
        line = {"color": colour, "dash": dash, "width": 2 if own else 1}
        if own:
            drawn.add_scatter(y=values, name=name, mode="lines", line=line, row=1, col=1)
        if name != "collective":
            distance = np.maximum(np.abs(np.array(values) - base), 1e-9)
            drawn.add_scatter(y=distance, name=name, mode="lines", line=line, showlegend=False, row=2, col=1)
    drawn.update_xaxes(**AXIS)
    drawn.update_yaxes(**AXIS)
    drawn.update_yaxes(title="loss (nats per token)", row=1)
    drawn.update_yaxes(title="distance", type="log", exponentformat="power", row=2)
    return drawn.update_xaxes(title="minibatch", row=2)


def agreement(predicted: Sequence[float], measured: Sequence[float], noise: Sequence[float] = ()) -> go.Figure:
    """A dot per minibatch; `noise` is the widest gap between two runs of each, as a fraction, where there were two."""
    words = "a dot per minibatch; on the line both are the same, above it the prediction is too long"
    title = "Predicted against measured makespan"
    drawn = figure(title, words, x="measured (s)", y="predicted (s)", height=520)
    ends = [0.95 * min(*predicted, *measured), 1.05 * max(*predicted, *measured)]
    drawn.add_scatter(x=ends, y=ends, mode="lines", line=DOTTED, name="the same", hoverinfo="skip")
    spans = {"type": "data", "array": [m * n / 2 for m, n in zip(measured, noise, strict=True)]} if noise else None
    drawn.add_scatter(
        x=list(measured),
        y=list(predicted),
        mode="markers",
        marker={"color": BLUE, "size": 9, "line": {"width": 1, "color": COLOURS["forward"]}},
        name="minibatches",
        customdata=[(number, 100 * (p / m - 1)) for number, (p, m) in enumerate(zip(predicted, measured, strict=True))],
        hovertemplate="minibatch %{customdata[0]}<br>measured %{x:.4g} s, predicted %{y:.4g} s"
        "<br>error %{customdata[1]:+.1f} %<extra></extra>",
        error_x=spans,
    )
    return drawn
