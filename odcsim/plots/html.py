"""Figures in web pages and notebooks: the library once, then each figure with its heading as text that wraps and can be
searched; for every viewer of notebooks a form that it shows, and sliders that are a picture where no kernel runs."""

import base64
import gzip
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape, unescape
from importlib.resources import files
from importlib.util import find_spec
from itertools import count
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer
from plotly.offline import get_plotlyjs

from odcsim.errors import InputError

# Nothing may be fetched, whatever a later change puts into the page.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_TAG = re.compile(r"<[^>]*>")
_NAMES = count(1)


def document(title: str, body: Iterable[str], *, script: str = "") -> str:
    """A page as one string that needs nothing from outside, neither network nor file. `body` is HTML already; the title
    is text. Words show before the script runs, which is at the end."""
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{style()}</style>\n</head>\n<body>\n<main>",
            *body,
            f"</main>\n{script}\n</body>\n</html>\n",
        )
    )


def style() -> str:
    return files("odcsim.plots").joinpath("page.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """plotly.js itself, to go into a page once, at its end where its words shall be seen first.

    Packed: its text is two thirds of what a page weighs, and every browser since 2023 unpacks it.
    """
    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    loader = files("odcsim.plots").joinpath("figures.js").read_text(encoding="utf-8")
    ready = "document.addEventListener('DOMContentLoaded', window.odcsimFigures.all)"
    library = f'<script type="application/octet-stream" id="plotly-packed">{packed}</script>'
    return f"{library}\n<script>{loader}{ready}</script>"


def embed(drawn: go.Figure, name: str) -> str:
    """A figure for a page that holds `script()`. The title's text was escaped when the figure was made."""
    title, subtitle = drawn.layout.title.text or "", drawn.layout.title.subtitle.text or ""
    bare = go.Figure(drawn)
    margin, height = {"t": 60, "l": 10, "r": 20, "b": 10}, drawn.layout.height - (drawn.layout.margin.t - 60)
    bare.update_layout(title=None, margin=margin, height=height)
    words = f'<h3>{title}</h3>\n<p class="note">{subtitle}</p>'
    return f'<figure id="figure-{name}">\n<figcaption>{words}</figcaption>\n{_picture(bare, name, title)}</figure>'


def _picture(drawn: go.Figure, name: str, title: str) -> str:
    """Where a figure is drawn, and its data. The title is what a screen reader says in its place."""
    name_of = escape(unescape(_TAG.sub("", title)), quote=True)
    look = f'class="figure" role="img" aria-label="{name_of}" style="height:{drawn.layout.height}px"'
    data = str(drawn.to_json()).replace("<", "\\u003c")
    return f'<div id="{name}" {look}></div>\n<script type="application/json" data-figure="{name}">{data}</script>'


class _Page(MimetypeRenderer):  # type: ignore[misc]
    """HTML for what shows neither plotly's own form nor asks anything of a network: exported notebooks."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        drawn = go.Figure(fig_dict)
        name, title = f"cell-figure-{next(_NAMES)}", drawn.layout.title.text or ""
        drawn.update_layout(height=drawn.layout.height or 450)
        now = f'<script>window.odcsimFigures?.draw("{name}")</script>'
        return {"text/html": f"{_picture(drawn, name, title)}{now}"}


def notebook(*, image: bool = False) -> None:
    """Let the figures of this notebook show in JupyterLab, VS Code and in what `jupyter nbconvert --to html` makes.

    A code host's viewer runs no script and shows images alone: `image=True` adds them, which needs kaleido and Chrome.
    """
    from IPython.display import HTML, display

    if image and find_spec("kaleido") is None:
        raise InputError("image=True needs kaleido", fix="pip install kaleido, or leave it out")
    pio.renderers["page"] = _Page()
    pio.renderers.default = "plotly_mimetype+png" if image else "plotly_mimetype+page"
    if not image:
        display(HTML(script()))  # type: ignore[no-untyped-call]


def slide(draw: Callable[..., go.Figure], **values: Sequence[Any]) -> None:
    """What `draw` gives for the first of each of its values, and a slider through each of them in their order.

    The figure is an output like any other: without a kernel, or without ipywidgets, it stays at the first values.
    """
    from IPython.display import display

    first = draw(**{name: options[0] for name, options in values.items()})
    moved: dict[str, Any] = {}
    if find_spec("ipywidgets") is not None:
        from ipywidgets import SelectionSlider

        look = {"style": {"description_width": "initial"}, "continuous_update": False}
        for name, options in values.items():
            words = name.replace("_", " ")
            moved[name] = SelectionSlider(options=sorted(options), value=options[0], description=words, **look)
    if moved:
        display(*moved.values())  # type: ignore[no-untyped-call]
    output = display(first._repr_mimebundle_(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def redraw(_: object) -> None:
        drawn = draw(**{name: slider.value for name, slider in moved.items()})
        output.update(drawn._repr_mimebundle_(), raw=True)

    for slider in moved.values():
        slider.observe(redraw, names="value")
