"""Figures in notebooks: for every viewer a form that it shows, and sliders that are a picture where no kernel runs."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import count
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer

from odcsim.errors import InputError
from odcsim.plots.html import picture, script

_NAMES = count(1)


class _Page(MimetypeRenderer):  # type: ignore[misc]
    """HTML for what shows neither plotly's own form nor asks anything of a network: exported notebooks."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        drawn = go.Figure(fig_dict)
        name, title = f"cell-figure-{next(_NAMES)}", drawn.layout.title.text or ""
        drawn.update_layout(height=drawn.layout.height or 450)
        now = f'<script>window.odcsimFigures?.draw("{name}")</script>'
        return {"text/html": f"{picture(drawn, name, title)}{now}"}


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
    moved = _sliders(values)
    if moved:
        display(*moved.values())  # type: ignore[no-untyped-call]
    shown = display(first._repr_mimebundle_(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def redraw(_: object) -> None:
        drawn = draw(**{name: slider.value for name, slider in moved.items()})
        shown.update(drawn._repr_mimebundle_(), raw=True)

    for slider in moved.values():
        slider.observe(redraw, names="value")


def _sliders(values: dict[str, Sequence[Any]]) -> dict[str, Any]:
    if find_spec("ipywidgets") is None:
        return {}
    import ipywidgets

    wide = {"description_width": "initial"}
    return {
        name: ipywidgets.SelectionSlider(
            options=sorted(options),
            value=options[0],
            description=name.replace("_", " "),
            style=wide,
            continuous_update=False,
        )
        for name, options in values.items()
    }
