"""Words of the field, typed into the search of the site that `make site` has built: the right page comes first."""

import browser
import pytest
from scripts import ROOT
from searches import SEARCHES

pytestmark = pytest.mark.browser
SITE = ROOT / "site"
# Guides stand before these wherever both have the words.
LATE = "reference/ log changelog contributing published-runs validation-runs paper-cells design decisions contract"
RESULTS = "[...document.querySelectorAll('#search-results li a')].map((found) => found.getAttribute('href'))"


@pytest.fixture(scope="module")
def results(chromium):
    """Addresses in the order of the results, as somebody sees them who types the words."""
    if not (SITE / "search.html").exists():
        pytest.skip("no site here: make site")
    with browser.window(chromium) as seen:

        def ask(words: str) -> list[str]:
            seen.page.goto((SITE / "index.html").as_uri())
            seen.page.fill("input[name=q]", words)
            seen.page.press("input[name=q]", "Enter")
            # The best result is put there first, and the others below it, one by one.
            seen.page.wait_for_selector("#search-results li a, #search-results p:not(:empty)", timeout=30_000)
            return list(seen.page.evaluate(RESULTS))

        ask.seen = seen
        yield ask


@pytest.mark.parametrize("words", SEARCHES)
def test_the_right_page_is_found_first(results, words):
    found = [address.partition(".html")[0] for address in results(words)]
    assert found, "nothing is found"
    assert found[0] in SEARCHES[words]


def test_references_logs_and_appendices_come_after_guides(results):
    results("straggler")
    results.seen.page.wait_for_function("!/Searching/.test(document.querySelector('#search-results h2').textContent)")
    late = [address.startswith(tuple(LATE.split())) for address in results.seen.page.evaluate(RESULTS)]
    assert any(late)
    assert late == sorted(late)
