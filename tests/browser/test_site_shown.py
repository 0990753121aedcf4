"""The site that `make site` has built, opened from the disk: pages of every kind, and the search."""

import browser
import pytest
from scripts import ROOT

pytestmark = pytest.mark.browser
SITE = ROOT / "site"
KINDS = "index howto/profile model/index neighbours reference/odcsim notebooks/1_lengths".split()


@pytest.fixture
def shown(chromium):
    if not (SITE / "index.html").exists():
        pytest.skip("no site here: make site")
    return chromium


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_a_page_fits_its_window_and_complains_of_nothing(shown, scheme, width, pictures):
    for kind in KINDS:
        with browser.window(shown, width, scheme) as seen:
            seen.open(SITE / f"{kind}.html")
            if kind.startswith("notebooks"):
                seen.drawn(2)
            assert seen.errors == [], kind
            assert seen.accessible() == [], kind
            assert not seen.page.evaluate("document.documentElement.scrollWidth > innerWidth"), kind
            dark = seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
            assert dark is (scheme == "dark"), kind
            seen.picture(pictures / f"site-{kind.replace('/', '-')}-{width}-{scheme}.png")


def test_words_are_found_without_a_server(shown):
    with browser.window(shown) as seen:
        seen.page.goto((SITE / "search.html").as_uri() + "?q=break-even")
        # Results are put there one by one: the page is waited for, and not whichever comes first.
        seen.page.wait_for_selector('#search-results li a[href*="howto/break-even.html"]', timeout=30_000)
        # The excerpts below each result are fetched, which a browser allows from a server alone.
        assert [error for error in seen.errors if "fetch" not in error.lower() and "ERR_" not in error] == []
