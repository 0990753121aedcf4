"""The page of an advice on a telephone, a tablet and a desk: offers apart, whatever the budget, and a whole table."""

import browser
import pytest

from odcsim.decide.advice.offers import advise
from odcsim.decide.advice.wish import Wish
from odcsim.question import Question
from odcsim.reading import load
from odcsim.show.pages.advice_page import write_advice

pytestmark = pytest.mark.browser
VIEWS = [(width, scheme) for width in browser.WIDTHS for scheme in browser.SCHEMES]


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    """Offers of many devices, a budget that is far from what they cost and a deadline that is near."""
    asked = Question(trace=load("sharegpt"), model="qwen2.5-1.5b", global_batch=64, epochs=2, minibatches=4)
    prices = {"h100": 2.5, "a100": 1.3}
    wish = Wish(asked, ("h100", "a100"), (4, 8, 16, 32, 64), prices, deadline=4 * 3600, budget=90_000)
    path = tmp_path_factory.mktemp("advice") / "advice.html"
    write_advice(advise(wish), path)
    return path


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_nothing_covers_anything_and_nothing_is_cut(chromium, advised, pictures, width, scheme):
    with browser.window(chromium, width, scheme) as seen:
        seen.open(advised).drawn(1)
        seen.picture(pictures / f"advice-{width}-{scheme}.png")
        assert seen.errors == []
        assert browser.overlapping(seen.boxes()) == []
        assert seen.wide() == []
        assert seen.cut() == []
        assert seen.accessible() == []


def test_a_desk_shows_the_whole_table(chromium, advised):
    with browser.window(chromium, 1400) as seen:
        seen.open(advised)
        wide, room = seen.page.evaluate("(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.scroll'))")
        assert wide <= room
