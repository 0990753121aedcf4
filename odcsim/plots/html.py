"""Figures in a web page: the library once, then each figure with its heading as text that wraps and can be searched."""

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs


def script() -> str:
    """plotly.js itself, to go into a page once."""
    return f"<script>{get_plotlyjs()}</script>"


def embed(drawn: go.Figure, name: str) -> str:
    """A figure for a page that holds `script()`. The title's text was escaped when the figure was made."""
    title, subtitle = drawn.layout.title.text or "", drawn.layout.title.subtitle.text or ""
    bare = go.Figure(drawn)
    bare.update_layout(title=None, margin={"t": 60, "l": 10, "r": 20, "b": 10})
    picture = bare.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config={"responsive": True, "displayModeBar": False},
    )
    return f'<figure id="figure-{name}"><h3>{title}</h3>\n<p class="note">{subtitle}</p>\n{picture}</figure>'
