"""Predicted against measured, with the line on which both are the same."""

from collections.abc import Sequence

import plotly.graph_objects as go

from odcsim.plots.style import BLUE, COLOURS, INK, figure


def agreement(predicted: Sequence[float], measured: Sequence[float], noise: Sequence[float] = ()) -> go.Figure:
    """A dot per minibatch; `noise` is the widest gap between two runs of each, as a fraction, where there were two."""
    errors = [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
    low, high = 0.95 * min(*predicted, *measured), 1.05 * max(*predicted, *measured)
    drawn = figure(
        "Predicted against measured makespan",
        "a dot per minibatch; on the line both are the same, above it the prediction is too long",
        x="measured (s)",
        y="predicted (s)",
        height=520,
    )
    drawn.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": INK, "dash": "dot", "width": 1.5},
        name="the same",
        hoverinfo="skip",
    )
    spans = {
        "error_x": {"type": "data", "array": [m * n / 2 for m, n in zip(measured, noise or measured, strict=True)]}
    }
    drawn.add_scatter(
        x=list(measured),
        y=list(predicted),
        mode="markers",
        marker={"color": BLUE, "size": 9, "line": {"width": 1, "color": COLOURS["forward"]}},
        name="minibatches",
        customdata=[(number, 100 * error) for number, error in enumerate(errors)],
        hovertemplate="minibatch %{customdata[0]}<br>measured %{x:.4g} s, predicted %{y:.4g} s"
        "<br>error %{customdata[1]:+.1f} %<extra></extra>",
        **(spans if noise else {}),
    )
    return drawn
