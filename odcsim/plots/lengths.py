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
    edges, samples, _ = stats.histogram(trace, BINS)
    share = 100 * samples / trace.size
    drawn.add_scatter(  # steps on edges, since bars on a logarithmic axis have no common width
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
    q, order = np.linspace(0, 1, 201), np.argsort(trace.lengths, kind="stable")
    at, ordered = stats.quantiles(trace, q), trace.lengths[order].astype(np.float64)
    tokens = np.cumsum(ordered if trace.counts is None else ordered * trace.counts[order])
    upto = np.maximum(np.searchsorted(ordered, at, side="right") - 1, 0)
    for name, under, colour, dash in (
        ("of samples", 100 * q, BLUE, "solid"),
        ("of tokens", 100 * tokens[upto] / tokens[-1], SKY, "dash"),
    ):
        hover = f"%{{y:.1f}} % {name} are in samples up to %{{x:,.0f}} tokens<extra></extra>"
        line = {"color": colour, "width": 2.5, "dash": dash}
        drawn.add_scatter(
            x=at, y=under, line=line, mode="lines", name=f"share {name}", hovertemplate=hover, row=2, col=1
        )
    marks = [("median", median), ("p99", p99), ("longest", trace.longest)]
    for (name, mark), (_, following) in zip(marks, [*marks[1:], ("", np.inf)], strict=True):
        if following > 1.04 * mark:  # names of marks that fall together would cover each other
            _mark(drawn, name, float(mark))
    low, high = trace.lengths.min() / 1.25, trace.longest * 1.15
    # Round lengths in sight, fewer of each decade where there are many decades.
    leading = (1, 2, 3, 5, 7) if high < 30 * low else (1, 3) if high < 30_000 * low else (1,)
    ticks = [n * 10**e for e in range(11) for n in leading if low <= n * 10**e <= high]
    drawn.update_xaxes(type="log", range=np.log10([low, high]).tolist(), tickvals=ticks)
    drawn.update_xaxes(ticktext=[f"{t:,}" for t in ticks], title="length (tokens)", row=2)
    drawn.update_xaxes(title="", row=1)
    drawn.update_xaxes(ticks="outside", tickcolor=INK)
    drawn.update_yaxes(title="samples (%)", row=1)
    return drawn.update_yaxes(title="no longer than (%)", range=[0, 102], row=2)


def _mark(drawn: go.Figure, name: str, at: float) -> None:
    """An annotation on a logarithmic axis is placed by the exponent, a shape by the value itself."""
    colour = COLOURS["wait_inside"] if name == "longest" else INK
    line, axes = {"color": colour, "width": 1, "dash": "dot"}, {"xref": "x", "yref": "paper"}
    drawn.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, **axes, line=line)
    place = {"x": float(np.log10(at)), "y": 1, **axes, "yanchor": "top", "xanchor": "right"}
    font = {"size": 11, "color": colour}
    drawn.add_annotation(**place, text=f"{name} {at:,.0f} ", textangle=-90, showarrow=False, font=font)
