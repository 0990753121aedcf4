"""One palette and one look for every picture: readable on white and on black, and without telling red from green."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

INK = "#767676"  # 4.5 : 1 on white, 4.2 : 1 on #111
HEAD = 112  # pixels above a figure: its title, what it says beneath, and a legend
GRID = "rgba(128, 128, 128, 0.22)"
BLUE, SKY, GREY = "#0072B2", "#56B4E9", "#9A9A9A"

# After Okabe and Ito's colours for the colour-blind (jfly.uni-koeln.de/color), two darker ones after Paul Tol's.
COLOURS = {
    "compute": BLUE,
    "backward": BLUE,
    "forward": SKY,
    "head": "#44AA99",
    "wait_inside": "#D55E00",
    "wait_end": "#E69F00",
    "gather": "#CC79A7",
    "push": "#882255",
    "overhead": GREY,
    "optimizer": "#5B5B5B",
    "other": GREY,
    "rest": "#C4C4C4",
}
HATCHED = {"wait_inside": "/", "wait_end": "\\"}
WAITING = "hatched: waiting for others"  # beneath the title of every picture with hatched bars
DOTTED = {"color": INK, "dash": "dot", "width": 1.5}  # a line of what is compared with

AXIS: dict[str, Any] = {"automargin": True, "gridcolor": GRID, "zeroline": False, "linecolor": GRID}
_NAMED = AXIS | {"title": {"font": {"size": 12}}}
_LOOK: dict[str, Any] = {"layout": {"xaxis": _NAMED, "yaxis": _NAMED}}  # of every axis, those of further panels too


def figure(title: str, subtitle: str, *, x: str, height: int, y: str = "") -> go.Figure:
    """An empty figure with axes named. Text from outside is escaped by the caller."""
    return go.Figure(layout=layout(title, subtitle, x=x, height=height, y=y))


def layout(title: str, subtitle: str, *, x: str, height: int, y: str = "") -> dict[str, Any]:
    """Of that figure, in plain values: plotly checks each change by itself, which takes longer than what is drawn."""
    head = {
        "text": title,
        "font": {"size": 15},
        "subtitle": {"text": subtitle, "font": {"size": 12}},
        "x": 0,
        "xanchor": "left",
        "xref": "container",
        "y": 1,
        "yanchor": "top",
        "pad": {"t": 10},
    }
    family = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
    return {
        "template": _LOOK,
        "title": head,
        "height": height + HEAD - 80,
        "margin": {"l": 10, "r": 20, "t": HEAD, "b": 10},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": family, "color": INK, "size": 13},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "traceorder": "normal"},
        "hoverlabel": {"align": "left"},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
    }


def fill(colour: str, hatch: str = "") -> dict[str, Any]:
    """Of a bar: solid for what a device does, hatched for what it waits for others."""
    if not hatch:
        return {"color": colour, "line": {"width": 0}}
    pattern = {"shape": hatch, "fgcolor": colour, "bgcolor": "rgba(0,0,0,0)", "size": 6, "solidity": 0.35}
    return {"color": colour, "pattern": pattern, "line": {"width": 0.6, "color": colour}}


def marker(kind: str) -> dict[str, Any]:
    return fill(COLOURS[kind], HATCHED.get(kind, ""))


def whiskers(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """Whiskers from the low ends to the high ones."""
    above = [end - value for end, value in zip(high, values, strict=True)]
    below = [value - end for end, value in zip(low, values, strict=True)]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5, "width": 4}
