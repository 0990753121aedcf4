"""No page is long to read, and each begins with a paragraph that says what it answers.

Words are those of the prose: code blocks, tables, comments, pictures and addresses of links do not count.
"""

import re

import pytest
from scripts import ROOT

WORDS = 2500
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]

LONGER = {  # references: looked up, not read from beginning to end
    "docs/log.md": "dated results, one entry for each",
}

FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*\s*?$", re.MULTILINE | re.DOTALL)
INDENTED_FENCE = re.compile(r"^ +(`{3,}).*?^ +\1\s*?$", re.MULTILINE | re.DOTALL)
DROPPED = (
    FENCE,
    INDENTED_FENCE,
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^\|.*$", re.MULTILINE),  # tables
    re.compile(r"!\[[^\]]*\]\([^)]*\)"),  # pictures
)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
NO_PARAGRAPH = re.compile(r"```|~~~|\||[-*+] |\d+\. |!\[|<|#")


def named(page):
    return page.relative_to(ROOT).as_posix()


def prose(page):
    for pattern in DROPPED:
        page = pattern.sub("", page)
    return LINK.sub(r"\1", page)


def words(page):
    return [word for word in prose(page).split() if any(map(str.isalnum, word))]


def first_block(page):
    """What stands first below the title."""
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    title, _, body = page.strip().partition("\n")
    assert title.startswith("# "), title
    return body.strip().partition("\n\n")[0]


@pytest.mark.parametrize("page", [page for page in PAGES if named(page) not in LONGER], ids=named)
def test_a_page_is_read_in_ten_minutes(page):
    assert len(words(page.read_text(encoding="utf-8"))) <= WORDS


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_begins_with_a_paragraph(page):
    assert not NO_PARAGRAPH.match(first_block(page.read_text(encoding="utf-8")))


def test_exceptions_are_pages_and_are_long():
    """So that a page that was shortened is held to the limit from then on."""
    for name in LONGER:
        assert len(words((ROOT / name).read_text(encoding="utf-8"))) > WORDS, name


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("# A title\n\nThree words [here](b.md).\n", 5),
        ("```sh\nodcsim demo\n```\nafter\n", 1),
        ("1. one:\n\n   ```sh\n   two\n   ```\n", 2),
        ("| a | b |\n|---|---|\n| c | d |\n\ntext\n", 1),
        ("<!-- not\nthis --> ![nor this](a.png) that\n", 1),
    ],
)
def test_words_are_those_of_the_prose(page, count):
    assert len(words(page)) == count


@pytest.mark.parametrize("block", ["```sh\na\n```", "| a |\n|---|", "- a", "1. a", "![a](b.png)", "## a"])
def test_a_page_that_begins_with_anything_else_is_seen(block):
    assert NO_PARAGRAPH.match(first_block(f"# title\n\n{block}\n\ntext\n"))
