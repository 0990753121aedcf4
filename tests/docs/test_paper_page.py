"""docs/paper.md and its appendix say what docs/studies/reproduce_paper.py computes, and hide no miss."""

import re
from dataclasses import replace
from statistics import median

import pytest
import scripts

PAGE = (scripts.ROOT / "docs/paper.md").read_text(encoding="utf-8")
SETTINGS = (scripts.ROOT / "docs/paper-cells.md").read_text(encoding="utf-8")
QUICK = ("golden setting", "nothing to balance")  # cells that take a second


script = scripts.load("docs/studies/reproduce_paper.py")
paper_page, CONTENT = script.paper_page, script.read()


@pytest.fixture(scope="module")
def quick():
    entries = [entry for entry in CONTENT["cells"] if entry["name"] in QUICK]
    return [script.cell(entry, script.place_of(entry), CONTENT["draws"]) for entry in entries]


def line(cells) -> str:
    return f"| {' | '.join(cells)} |"


def test_the_pages_show_what_the_script_computes(quick):
    """Where this fails on purpose, run `make reproduce-paper` and read the difference."""
    assert len(quick) == 3
    assert [cell.name for cell in quick if line(paper_page.cell_row(cell)) not in PAGE.splitlines()] == []
    one = dict(CONTENT["groups"][0], traces=["swe-smith"], models={"r1-distill-qwen-14b": 16}, minibatches=[2])
    (found,) = script.lines({"groups": [one]}, CONTENT["draws"], lambda: None)
    assert len(found.ends) == 2
    assert line(paper_page.line_row(found)) in SETTINGS.splitlines()


def test_a_miss_is_against_what_was_published_and_the_summary_counts_and_names_the_worst(quick):
    twice = replace(quick[0], published=2 * quick[0].published)
    assert twice.off == pytest.approx((1 + quick[0].off) / 2 - 1)
    assert f"{twice.off:+.1%}" in paper_page.cell_row(twice)
    offs = (0.02, -0.04, 0.5)
    cells = [replace(c, published=1.0, ours=1 + off, name=f"n{off}") for c, off in zip(quick, offs, strict=True)]
    more = [replace(cells[0], place=None), replace(cells[0], kind="seconds"), replace(cells[0], stated=True)]
    rows = [row.split(" | ") for row in paper_page.summary_lines([*cells, *more]).splitlines()]
    assert rows[2][1:5] == ["3", "1", "2", "2"]
    assert rows[-1][1:5] == ["6", "4", "5", "5"]
    assert rows[2][5].startswith("+50.0%: n0.5")


def test_every_published_figure_and_setting_is_on_the_page_with_its_source():
    for entry in CONTENT["cells"]:
        pair = f"{entry['sync']} + {entry['balancer']}" + (f" (ours: {entry['held']})" if "held" in entry else "")
        row = f"| {entry['minibatch']} | {pair} | {paper_page.KINDS.get(entry['kind'], entry['kind'])} | "
        row += f"{paper_page.number(entry['published'], entry['kind'])} | "
        assert any(row in shown and shown.endswith(f"| {entry['source']} |") for shown in PAGE.splitlines()), row
    for entry in (*CONTENT["cells"], *CONTENT["stated"], *CONTENT["largest"]):
        assert CONTENT["sources"][entry["source"]]["url"].startswith("https://")
    for entry in CONTENT["largest"]:
        assert re.search(rf"^\| largest of {entry['group']}.*\| {entry['published']:.2f} \|", PAGE, re.MULTILINE)
    for place in (place for group in CONTENT["groups"] for place in script.places(group)):
        assert f"| {place.model} | {place.devices} a100 | {place.trace} | {place.minibatch} | " in SETTINGS


def test_what_the_page_says_first_is_in_its_tables():
    text = " ".join(PAGE.split())
    met = re.search(r"^\| all \| (\d+) \| \d+ \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert f"{met[2]} of {met[1]} are within 5 %, {met[3]} within 10 %." in text
    micro, mini = re.findall(r"^\| golden setting \|.* \+ lb-m\w+ \| speedup \| (\S+) \| (\S+) \|", PAGE, re.MULTILINE)
    assert f"runs {mini[0]} times as fast as collective + `lb-micro` as published and {mini[1]} times as" in text
    assert f"on-demand + `lb-micro` {micro[0]} and {micro[1]} times." in text


def judged(cells, seconds):
    """With a cost that is added to on-demand alone, as the option does."""

    def again(place, cost):
        return {pair: s + cost * (pair[1] == "on-demand") for pair, s in seconds(place).items()}

    return script.paper_costs.charged(cells, seconds, again)


def test_a_cost_that_is_there_is_found_by_the_settings_that_are_not_judged():
    """Published figures of four settings of one engine, whose on-demand really costs 3 s more. Whatever is published
    of one: what it is judged by stays."""
    place = script.place_of(next(e for e in CONTENT["cells"] if e["name"] == "port, two nodes"))
    pair, other = ("lb-mini", "on-demand"), ("lb-micro", "collective")
    known = {2**n: {other: 20.0 * 2**n, pair: 15.0 * 2**n} for n in range(4)}
    cells = []
    for size, both in known.items():
        published, ours = both[other] / (both[pair] + 3), both[other] / both[pair]
        there = replace(place, minibatch=size)
        cells.append(script.Cell(f"n{size}", there, pair, "", "speedup", published, ours, "blog"))

    def seconds(place):
        return known[place.minibatch]

    found = judged(cells, seconds)
    assert [one.group for one in found] == ["AMD's port, several nodes"] * 4
    assert [(one.needed, one.seconds, one.points) for one in found] == [pytest.approx((3, 3, 0))] * 4
    odd = judged([replace(cells[0], published=9.0), *cells[1:]], seconds)
    assert odd[0].needed != found[0].needed
    assert odd[0].seconds == found[0].seconds
    alone = judged(cells[:1], seconds)
    assert (alone[0].seconds, alone[0].ours) == (0.0, cells[0].ours)
    for published, ours, told in ((1.2, 1.01, "right"), (0.9, 0.99, "right"), (0.9, 1.1, "WRONG"), (1.0, 1.1, "")):
        assert paper_page.sign(replace(cells[0], published=published, ours=ours)) == told
    assert paper_page.points(replace(cells[0], published=1.2, ours=1.25)) == "+5.0"


def test_what_the_page_says_of_several_nodes_is_in_its_tables():
    rows = re.findall(r"^\| (?:ODC|AMD's port), several nodes \|.*$", SETTINGS, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    plain, after = ([abs(float(row[i])) for row in cells] for i in (6, 10))
    text = " ".join(PAGE.split())
    said = re.search(r"On several nodes (\d+) speedups are (\S+) points off in the median, (\S+) at most", text)
    assert (int(said[1]), float(said[3])) == (len(rows), max(plain))
    assert float(said[2]) == pytest.approx(median(plain), abs=0.11)
    first = re.search(r"(\d+) of (\d+) speedups go the right way and (\d+) the wrong way. They are (\S+) hund", text)
    assert first[4] == said[2]
    assert int(first[1]) + int(first[3]) == int(first[2]) == len(rows)
    found = re.search(r"its other settings, the median is (\S+)\. ", text)
    assert float(found[1]) == pytest.approx(median(after), abs=0.11)
    assert median(after) <= 8
    hybrid = re.search(r"in the settings that it ran ours has (\S+) at most", " ".join(SETTINGS.split()))
    assert float(hybrid[1]) <= 1.28
