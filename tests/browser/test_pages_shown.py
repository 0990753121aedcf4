"""Pages of commands on a telephone, a tablet and a desk, on white and on black: nothing covers anything, all has a
name."""

import browser
import pytest
from diagnosed import diagnosis, of_ranks

from odcsim.decide.advice import Wish, searched
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare, sweep_max_tokens
from odcsim.question import Question
from odcsim.reading import load
from odcsim.show.pages.answer_pages import write_advice, write_diagnosis, write_timelines
from odcsim.show.pages.report import write_report

pytestmark = pytest.mark.browser


def report(path, _):
    """With everything that a report can hold: a price, a memory limit and a sweep."""
    setting = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=4, minibatches=20)
    known = {"price": 2.5, "memory_limit": 80e9}
    write_report(compare(setting, **known), path, sweep_max_tokens(setting, (65536, 72000, 131072), **known))


def advice(path, _):
    """Offers of many devices, a budget that is far from what they cost and a deadline that is near."""
    asked = Question(trace=load("sharegpt"), model="qwen2.5-1.5b", global_batch=64, epochs=2, minibatches=4)
    prices = {"h100": 2.5, "a100": 1.3}
    write_advice(
        searched(Wish(asked, ("h100", "a100"), (4, 8, 16, 32, 64), prices, deadline=14_400, budget=90_000)), path
    )


def diagnosis_of_eight(path, _):
    write_diagnosis(diagnosis(), path)


def diagnosis_of_many(path, _):
    write_diagnosis(of_ranks(128), path)


def timelines(path, timeline):
    write_timelines([timeline, timeline], path)


FIGURES = {report: 7, advice: 1, diagnosis_of_eight: 4, diagnosis_of_many: 4, timelines: 2}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """`written(page, timeline)`: where it is, written once."""
    folder = tmp_path_factory.mktemp("pages")

    def at(page, timeline=None):
        path = folder / f"{page.__name__}.html"
        if not path.exists():
            page(path, timeline)
        return path

    return at


@pytest.mark.parametrize(("width", "scheme"), browser.VIEWS)
@pytest.mark.parametrize("page", FIGURES)
def test_nothing_covers_anything_and_nothing_is_cut(chromium, written, timeline, pictures, page, width, scheme):
    with browser.window(chromium, width, scheme) as seen:
        seen.open(written(page, timeline)).drawn(FIGURES[page])
        seen.laid_out(pictures / f"{page.__name__}-{width}-{scheme}.png")


@pytest.mark.parametrize("width", browser.WIDTHS)
def test_what_is_folded_opens_and_is_readable_there(chromium, written, pictures, width):
    with browser.window(chromium, width) as seen:
        seen.open(written(report)).drawn(FIGURES[report])
        folded = seen.page.locator("details table")
        assert [table.is_visible() for table in folded.all()] == [False, False]
        for words in seen.page.locator("summary").all():
            words.click()
        assert [table.is_visible() for table in folded.all()] == [True, True]
        seen.readable(pictures / f"report-open-{width}.png")


def test_the_words_of_a_report_come_before_its_figures_and_it_prints(chromium, written, pictures):
    """First paint, measured by the browser itself: plotly.js is unpacked after it."""
    with browser.window(chromium) as seen:
        seen.open(written(report)).drawn(FIGURES[report])
        paint = seen.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert paint < seen.page.evaluate("window.odcsimFigures.unpacked")
        pdf = seen.page.pdf(path=None, prefer_css_page_size=True)
        assert len(pdf) < 8e6
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / "report.pdf").write_bytes(pdf)


def test_a_thousand_devices_are_legible(chromium, pictures, tmp_path):
    path = tmp_path / "many.html"
    write_report(compare(ask("longalign", "qwen3-8b", gpu="h100", devices=1024, minibatch=2, minibatches=2)), path)
    assert path.stat().st_size < 6e6
    with browser.window(chromium, 800) as seen:
        seen.open(path).drawn(FIGURES[report] - 2)
        seen.picture(pictures / "report-1024-devices.png")
        assert browser.overlapping(seen.boxes()) == []
        assert seen.errors == []


def test_a_desk_shows_the_whole_table_of_an_advice(chromium, written):
    with browser.window(chromium, 1400) as seen:
        seen.open(written(advice))
        wide, room = seen.page.evaluate("(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.scroll'))")
        assert wide <= room
