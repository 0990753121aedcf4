"""Figures in a web page: the library once, then each figure with its heading as text that wraps and can be searched."""

import base64
import gzip
import re
from functools import cache
from html import escape, unescape
from importlib.resources import files

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

_TAG = re.compile(r"<[^>]*>")


@cache
def script() -> str:
    """plotly.js itself, to go into a page once, at its end where its words shall be seen first.

    Packed: its text is two thirds of what a page weighs, and every browser since 2023 unpacks it.
    """
    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    loader = files("odcsim.plots").joinpath("figures.js").read_text(encoding="utf-8")
    ready = "document.addEventListener('DOMContentLoaded', window.odcsimFigures.all)"
    held = f'<script type="application/octet-stream" id="plotly-packed">{packed}</script>'
    return f"{held}\n<script>{loader}{ready}</script>"


def embed(drawn: go.Figure, name: str) -> str:
    """A figure for a page that holds `script()`. The title's text was escaped when the figure was made."""
    title, subtitle = drawn.layout.title.text or "", drawn.layout.title.subtitle.text or ""
    bare = go.Figure(drawn)
    margin, height = {"t": 60, "l": 10, "r": 20, "b": 10}, drawn.layout.height - (drawn.layout.margin.t - 60)
    bare.update_layout(title=None, margin=margin, height=height)
    words = f'<h3>{title}</h3>\n<p class="note">{subtitle}</p>'
    return f'<figure id="figure-{name}">\n<figcaption>{words}</figcaption>\n{picture(bare, name, title)}</figure>'


def picture(drawn: go.Figure, name: str, title: str) -> str:
    """Where a figure is drawn, and its data. The title is what a screen reader says in its place."""
    said = escape(unescape(_TAG.sub("", title)), quote=True)
    place = (
        f'<div id="{name}" class="figure" role="img" aria-label="{said}" style="height:{drawn.layout.height}px"></div>'
    )
    data = str(drawn.to_json()).replace("<", "\\u003c")
    return f'{place}\n<script type="application/json" data-figure="{name}">{data}</script>'
