"""What makes a site of the pages; that it is built without a warning, and that no link is broken, is `make site`."""

import re

import scripts
from public import PUBLIC

from odcsim.cli import COMMANDS

NAMES = ("api", "commands", "follow", "order", "outside")
api, commands, follow, order, outside = (scripts.load(f"docs/site/{name}.py") for name in NAMES)
DOCS = scripts.ROOT / "docs"


def test_every_page_has_its_place_where_an_index_lists_it():
    """Beginning at home."""
    found, ahead = set(), ["index.md"]
    while ahead:
        index = ahead.pop()
        found.add(index)
        for _, pages in order.sections((DOCS / index).read_text(encoding="utf-8"), index):
            ahead += [page for page in pages if page.endswith("index.md")]
            found |= set(pages)
    assert found == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    text = "[no](no.md)\n\n- [a](a.md), and\n  [b](b/index.md)\n\n## Next\n\n1. [c](c.md#x) [c](c.md)\n- [o](../o.md)\n"
    assert order.sections(text, "in/index.md") == [("", ["in/a.md", "in/b/index.md"]), ("Next", ["in/c.md"])]


FITTED = (
    ("docs/index.md", "../traces/README.md", "traces.md"),
    ("docs/howto/rl.md", "../log.md#x", "../log.md#x"),
    ("docs/howto/rl.md", "../../README.md#x", "../readme.md#x"),
    ("README.md", "docs/howto/rl.md", "howto/rl.md"),
    ("README.md", "notebooks/explore.ipynb", "notebooks/explore.md"),
    ("traces/README.md", "../docs/log.md", "log.md"),
    ("notebooks/README.md", "explore.ipynb", "explore.md"),
    ("notebooks/explore.ipynb", "README.md", "index.md"),
    ("README.md", "https://arxiv.org/abs/2601.19362", "https://arxiv.org/abs/2601.19362"),
)


def test_links_fit_where_a_page_is_on_the_site():
    fitted = [outside.fitted(f"[a]({link})", path) for path, link, _ in FITTED]
    assert fitted == [f"[a]({fit})" for *_, fit in FITTED]
    text = "```toml a.toml\n[x](y.md)\n```\n"  # a fence keeps its words and shows its file
    assert outside.fitted(text, "README.md") == "```{code-block} toml\n:caption: a.toml\n\n[x](y.md)\n```\n"


def test_the_references_have_every_command_flag_and_public_module():
    page = commands.page("odcsim")
    headings = re.findall(r"^## odcsim (.*)$", page, re.MULTILINE)
    assert {name.replace("_", "-") for name in COMMANDS} | {"trace info", "catalog show"} <= set(headings)
    compare = page.partition("## odcsim compare\n")[2].partition("\n## ")[0]
    assert "| `--minibatch K` | " in compare
    assert "==SUPPRESS==" not in page
    assert {module for modules in api.MODULES.values() for module in modules} == set(PUBLIC)


def test_a_link_that_leads_nowhere_is_told(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "a.html").write_text(
        '<a href="in/b.html#yes">1</a><a href="in/b.html#no">2</a><a href="c.html">3</a><a href="#here">4</a>'
        '<a href="https://example.org/">5</a><script src="https://example.org/x.js"></script><img src="x.png">'
    )
    (tmp_path / "in/b.html").write_text('<h1 id="yes">b</h1><a href="../a.html">a</a>')
    assert follow.broken(tmp_path) == [
        "a.html: loads https://example.org/x.js from elsewhere",
        "a.html: in/b.html#no leads to no place in it",
        "a.html: c.html leads to no file",
        "a.html: #here leads to no place in it",
        "a.html: x.png leads to no file",
    ]
