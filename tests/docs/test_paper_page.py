"""docs/paper.md says what docs/studies/reproduce_paper.py computes, and hides no miss."""

import copy
import re
from dataclasses import replace

import pytest
import scripts

PAGE = (scripts.ROOT / "docs/paper.md").read_text(encoding="utf-8")
QUICK = ("golden setting", "nothing to balance")  # cells that take a second


@pytest.fixture(scope="module")
def script():
    return scripts.load("docs/studies/reproduce_paper.py")


@pytest.fixture(scope="module")
def content(script):
    return script.read()


def quick(script, content):
    entries = [entry for entry in content["cells"] if entry["name"] in QUICK]
    return [script.cell(entry, script.place_of(entry), content["draws"]) for entry in entries]


def line(cells) -> str:
    return f"| {' | '.join(cells)} |"


def test_the_page_shows_what_the_script_computes(script, content):
    """Where this fails on purpose, run `make reproduce-paper` and read the difference."""
    cells = quick(script, content)
    assert len(cells) == 3
    for cell in cells:
        assert line(script.paper_page.cell_row(cell)) in PAGE.splitlines()


def test_the_table_of_all_settings_shows_what_the_script_computes(script, content):
    one = dict(content["groups"][0], traces=["swe-smith"], models={"r1-distill-qwen-14b": 16}, minibatches=[2])
    (found,) = script.lines({"groups": [one]}, content["draws"], lambda: None)
    assert len(found.ends) == 2
    assert line(script.paper_page.line_row(found)) in PAGE.splitlines()


def test_another_published_figure_prints_another_miss(script, content):
    before = quick(script, content)
    changed = copy.deepcopy(content)
    changed["cells"][0]["published"] = 2 * content["cells"][0]["published"]
    after = quick(script, changed)
    rows = [script.paper_page.cell_row(cells[0]) for cells in (before, after)]
    assert rows[0][-4] != rows[1][-4]
    assert rows[0][-3] == rows[1][-3]  # ours does not follow it
    assert after[0].off == pytest.approx((1 + before[0].off) / 2 - 1)
    shown = f"{after[0].off:+.1%}"
    assert shown in rows[1]
    assert shown not in rows[0]


def test_the_summary_counts_what_is_within_and_names_the_worst(script, content):
    cells = quick(script, content)
    offs = (0.02, -0.04, 0.5)
    cells = [replace(c, published=1.0, ours=1 + off, name=f"n{off}") for c, off in zip(cells, offs, strict=True)]
    more = [replace(cells[0], place=None), replace(cells[0], kind="seconds"), replace(cells[0], stated=True)]
    rows = [row.split(" | ") for row in script.paper_page.summary_lines([*cells, *more]).splitlines()]
    assert rows[2][1:5] == ["3", "1", "2", "2"]
    assert rows[-1][1:5] == ["6", "4", "5", "5"]
    assert rows[2][5].startswith("+50.0%: n0.5")


def test_every_published_figure_is_on_the_page_with_its_source(script, content):
    for entry in content["cells"]:
        row = f"| {entry['minibatch']} | {entry['sync']} + {entry['balancer']} | {entry['kind']} | "
        row += f"{script.paper_page.number(entry['published'], entry['kind'])} | "
        assert any(row in shown and shown.endswith(f"| {entry['source']} |") for shown in PAGE.splitlines()), row
    for entry in (*content["cells"], *content["stated"], *content["largest"]):
        assert content["sources"][entry["source"]]["url"].startswith("https://")
    for entry in content["largest"]:
        assert re.search(rf"^\| largest of {entry['group']}.*\| {entry['published']:.2f} \|", PAGE, re.MULTILINE)


def test_every_setting_of_the_paper_is_on_the_page(script, content):
    for group in content["groups"]:
        for place in script.places(group):
            assert f"| {place.model} | {place.devices} a100 | {place.trace} | {place.minibatch} | " in PAGE


def test_what_the_page_says_of_its_misses_holds_in_its_tables():
    rows = re.findall(r"^\| (?:limit|lengths|seconds): .*? \| (\S+) \| (\S+) \| (\S+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    assert max(float(mini) for _, mini, _ in rows) < 1.34
    higher = re.search(r"^\| limit: a tenth higher .*? \| (\S+) \| (\S+) \|", PAGE, re.MULTILINE)
    ours = re.search(r"^\| nothing: ours \| (\S+) \| (\S+) \|", PAGE, re.MULTILINE)
    assert float(ours[2]) - float(higher[2]) >= 1.34 - float(ours[2])
    assert float(re.search(r"On two nodes on-demand still took (\S+) times", PAGE)[1]) > 1.1
    assert float(re.search(r"\| on-demand, best balancer \| speedup \| 1.10 \| (\S+) \|", PAGE)[1]) > 1.10
