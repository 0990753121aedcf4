"""Figures in a notebook have a form for every viewer, and sliders leave a picture."""

import json
import re
import sys
from types import SimpleNamespace

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from odcsim import plots
from odcsim.errors import InputError

IPython = pytest.importorskip("IPython")


@pytest.fixture
def displayed(monkeypatch):
    """What was displayed, and updated."""
    shown = []
    handle = SimpleNamespace(update=lambda content, **_: shown.append(content))
    monkeypatch.setattr(IPython.display, "display", lambda *contents, **_: shown.extend(contents) or handle)
    monkeypatch.setattr(pio.renderers, "default", pio.renderers.default)
    return shown


def bar(height):
    return go.Figure(go.Bar(y=[height])).update_layout(title={"text": f"<b>{height}</b> & high"})


def test_a_figure_has_plotlys_form_and_html_that_needs_the_page_alone(displayed):
    plots.notebook()
    assert 'id="plotly-packed"' in displayed[0].data
    bundle = bar(3)._repr_mimebundle_()
    assert bundle["application/vnd.plotly.v1+json"]["data"][0]["y"] == [3]
    html = bundle["text/html"]
    assert 'aria-label="3 &amp; high"' in html
    name, text = re.search(r'data-figure="([\w-]+)">([^<]*)</script>', html).groups()
    assert json.loads(text)["data"][0]["y"] == [3]
    assert f'id="{name}"' in html
    assert "src=" not in html
    assert f'id="{name}"' not in bar(3)._repr_mimebundle_()["text/html"]  # each has a name of its own


def test_a_slider_moves_the_picture(displayed):
    pytest.importorskip("ipywidgets")
    plots.notebook()
    plots.slide(bar, height=(2, 1, 3))
    slider, first = displayed[1:]
    assert (list(slider.options), slider.value) == ([1, 2, 3], 2)
    slider.value = 3
    assert [shown["application/vnd.plotly.v1+json"]["data"][0]["y"] for shown in (first, displayed[-1])] == [[2], [3]]


def test_without_what_sliders_and_images_need(displayed, monkeypatch):
    """The picture stays; images are refused."""
    monkeypatch.setattr(sys.modules["odcsim.plots.notebook"], "find_spec", lambda _: None)
    plots.notebook()
    plots.slide(bar, height=(2, 1, 3))
    assert len(displayed) == 2
    with pytest.raises(InputError):
        plots.notebook(image=True)
