"""Pictures of on-demand's lead as one thing is changed."""

from collections.abc import Sequence

import plotly.graph_objects as go

from odcsim.plots.style import BLUE, INK, figure


def lead(name: str, labels: Sequence[str], leads: Sequence[float | None], here: str, worth: float) -> go.Figure:
    """`worth`: the lead from which on it pays; `here`: the label of the question's own value."""
    drawn = figure(name, "speedup of on-demand over the best without it", x=name, y="times as fast", height=300)
    drawn.add_hline(y=worth, line={"color": INK, "dash": "dot", "width": 1.5})
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
