"""The report on a telephone, a tablet and a desk, on white and on black: nothing covers anything, all has a name."""

import browser
import pytest

from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.sweep import sweep_max_tokens
from odcsim.show.pages.report import write_report, write_timelines

pytestmark = pytest.mark.browser
FIGURES = 7
VIEWS = [(width, scheme) for width in browser.WIDTHS for scheme in browser.SCHEMES]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """With everything that a report can hold: a price, a memory limit and a sweep."""
    setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, minibatches=20)
    known = {"price": 2.5, "memory_limit": 80e9}
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(compare(setting, **known), path, sweep_max_tokens(setting, (65536, 72000, 131072), **known))
    return path


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_nothing_covers_anything(chromium, report, pictures, width, scheme):
    with browser.window(chromium, width, scheme) as seen:
        seen.open(report).drawn(FIGURES)
        seen.picture(pictures / f"report-{width}-{scheme}.png")
        assert seen.errors == []
        assert browser.overlapping(seen.boxes()) == []
        assert seen.wide() == []
        assert seen.cut() == []
        assert seen.accessible() == []


@pytest.mark.parametrize("width", browser.WIDTHS)
def test_what_is_folded_opens_and_is_readable_there(chromium, report, pictures, width):
    with browser.window(chromium, width) as seen:
        seen.open(report).drawn(FIGURES)
        folded = seen.page.locator("details table")
        assert [table.is_visible() for table in folded.all()] == [False, False]
        for words in seen.page.locator("summary").all():
            words.click()
        assert [table.is_visible() for table in folded.all()] == [True, True]
        seen.picture(pictures / f"report-open-{width}.png")
        assert browser.overlapping(seen.boxes()) == []
        assert seen.wide() == []
        assert seen.accessible() == []


def test_the_words_come_before_the_figures(chromium, report):
    """First paint, measured by the browser itself: plotly.js is unpacked after it."""
    with browser.window(chromium) as seen:
        seen.open(report)
        seen.drawn(1)
        paint = seen.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        script = seen.page.evaluate("window.odcsimFigures.unpacked")
        assert paint < script


def test_it_prints(chromium, report, pictures):
    with browser.window(chromium) as seen:
        seen.open(report).drawn(FIGURES)
        pdf = seen.page.pdf(path=None, prefer_css_page_size=True)
        assert len(pdf) < 8e6
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / "report.pdf").write_bytes(pdf)


def test_a_thousand_devices_are_legible(chromium, pictures, tmp_path):
    path = tmp_path / "many.html"
    setting = ask("longalign", "qwen3-8b", gpu="h100", devices=1024, minibatch=2, minibatches=2)
    write_report(compare(setting), path)
    assert path.stat().st_size < 6e6
    with browser.window(chromium, 800) as seen:
        seen.open(path).drawn(FIGURES - 2)
        seen.picture(pictures / "report-1024-devices.png")
        assert browser.overlapping(seen.boxes()) == []
        assert seen.errors == []


@pytest.mark.parametrize("width", browser.WIDTHS)
def test_timelines_beside_each_other(chromium, timeline, pictures, tmp_path, width):
    path = tmp_path / "timelines.html"
    write_timelines([timeline, timeline], path)
    with browser.window(chromium, width) as seen:
        seen.open(path).drawn(2)
        seen.picture(pictures / f"timelines-{width}.png")
        assert seen.errors == []
        assert browser.overlapping(seen.boxes()) == []
        assert seen.wide() == []
        assert seen.cut() == []
        assert seen.accessible() == []
