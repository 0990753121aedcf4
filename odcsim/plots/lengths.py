"""The picture of a trace: how long its samples are, and where its tokens are."""

from html import escape

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from odcsim.plots.style import BLUE, COLOURS, INK, SKY, figure
from odcsim.reading import stats
from odcsim.trace import Trace

BINS = 48


def lengths(trace: Trace) -> go.Figure:
    """Samples by length on a logarithmic axis; below, what share of samples and of tokens lies under each length."""
    median, p99 = stats.quantiles(trace, [0.5, 0.99])
    drawn = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.55, 0.45])
    title = f"Lengths of {escape(trace.name)}: half are under {median:,.0f} tokens, the longest has {trace.longest:,}"
    about = f"{trace.size:,} samples; {escape(trace.origin)}" if trace.origin else f"{trace.size:,} samples"
    drawn.update_layout(figure(title, about, x="", height=540).layout)
    _shape(drawn, trace)
    _cumulative(drawn, trace)
    marks = [("median", median), ("p99", p99), ("longest", trace.longest)]
    for (name, at), (_, following) in zip(marks, [*marks[1:], ("", np.inf)], strict=True):
        if following > 1.04 * at:  # names of marks that fall together would cover each other
            _mark(drawn, name, float(at))
    low, high = trace.lengths.min() / 1.25, trace.longest * 1.15
    ticks = _ticks(low, high)
    drawn.update_xaxes(type="log", range=np.log10([low, high]).tolist(), tickvals=ticks)
    drawn.update_xaxes(ticktext=[f"{t:,}" for t in ticks], title="length (tokens)", row=2)
    drawn.update_xaxes(title="", row=1)
    drawn.update_xaxes(ticks="outside", tickcolor=INK)
    drawn.update_yaxes(title="samples (%)", row=1)
    return drawn.update_yaxes(title="no longer than (%)", range=[0, 102], row=2)


def _ticks(low: float, high: float) -> list[int]:
    """Round lengths in sight, fewer of each decade where there are many decades."""
    leading = (1, 2, 3, 5, 7) if high < 30 * low else (1, 3) if high < 30_000 * low else (1,)
    return [n * 10**e for e in range(11) for n in leading if low <= n * 10**e <= high]


def _shape(drawn: go.Figure, trace: Trace) -> None:
    """Steps on edges, since bars on a logarithmic axis have no common width."""
    edges, counts = stats.histogram(trace, BINS)
    share = 100 * counts / trace.size
    drawn.add_scatter(
        x=edges,
        y=np.append(share, share[-1]),
        line={"shape": "hv", "color": BLUE, "width": 1},
        fill="tozeroy",
        fillcolor="rgba(0, 114, 178, 0.45)",
        mode="lines",
        showlegend=False,
        hovertemplate="from %{x:,} tokens: %{y:.2f} % of samples<extra></extra>",
        row=1,
        col=1,
    )
    drawn.update_yaxes(range=[0, 1.6 * share.max()], row=1)  # room for the names of the marks


def _cumulative(drawn: go.Figure, trace: Trace) -> None:
    q = np.linspace(0, 1, 201)
    at = stats.quantiles(trace, q)
    order = np.argsort(trace.lengths, kind="stable")
    ordered = trace.lengths[order].astype(np.float64)
    tokens = np.cumsum(ordered if trace.counts is None else ordered * trace.counts[order])
    upto = np.searchsorted(ordered, at, side="right") - 1
    curves = (
        ("of samples", 100 * q, BLUE, "solid"),
        ("of tokens", 100 * tokens[np.maximum(upto, 0)] / tokens[-1], SKY, "dash"),
    )
    for name, share, colour, dash in curves:
        drawn.add_scatter(
            x=at,
            y=share,
            line={"color": colour, "width": 2.5, "dash": dash},
            mode="lines",
            name=f"share {name}",
            hovertemplate=f"%{{y:.1f}} % {name} are in samples up to %{{x:,.0f}} tokens<extra></extra>",
            row=2,
            col=1,
        )


def _mark(drawn: go.Figure, name: str, at: float) -> None:
    colour = COLOURS["wait_inside"] if name == "longest" else INK
    drawn.add_shape(
        type="line", x0=at, x1=at, y0=0, y1=1, xref="x", yref="paper", line={"color": colour, "width": 1, "dash": "dot"}
    )
    # An annotation on a logarithmic axis is placed by the exponent, a shape by the value itself.
    drawn.add_annotation(
        x=float(np.log10(at)),
        y=1,
        xref="x",
        yref="paper",
        yanchor="top",
        xanchor="right",
        text=f"{name} {at:,.0f} ",
        textangle=-90,
        showarrow=False,
        font={"size": 11, "color": colour},
    )
