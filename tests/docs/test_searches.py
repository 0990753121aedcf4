"""Pages keep the words that people search for: without a site, since that is what the search reads."""

import re

import pytest
import scripts
from searches import SEARCHES

DOCS = scripts.ROOT / "docs"
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
SMALL = {"a", "from", "of", "on", "to", "which"}  # a search leaves these out, or every page has them


def stems(words: str) -> list[str]:
    """As near as a test needs to what Sphinx makes of words."""
    return [re.sub(r"(ation|ing|s|e)$", "", word) for word in re.findall(r"\w+", words.casefold()) if word not in SMALL]


def test_there_are_enough():
    assert len(SEARCHES) >= 25


@pytest.mark.parametrize("words", SEARCHES)
def test_a_page_has_the_words_and_one_of_them_in_a_heading(words):
    for page in SEARCHES[words]:
        text = FENCE.sub("", (DOCS / f"{page}.md").read_text(encoding="utf-8")).casefold()
        headings = " ".join(re.findall(r"^#+ (.*)", text, re.MULTILINE))
        assert [stem for stem in stems(words) if stem not in text] == [], page
        assert any(stem in headings for stem in stems(words)), page
