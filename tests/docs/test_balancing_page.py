"""docs/balancing.md says what docs/studies/balancing.py computes, and keeps what is written by hand."""

import pytest
import scripts

PAGE = (scripts.ROOT / "docs/balancing.md").read_text(encoding="utf-8")
script = scripts.load("docs/studies/balancing.py")


def shown(name):
    """The cells of a table on the page, by the first of each row."""
    text = PAGE.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return rows[0], {row[0]: row[1:] for row in rows[2:]}


def test_the_page_shows_what_the_script_computes():
    """Where this fails on purpose, run `make balancing` and read the difference."""
    cell = script.Cell("swe", script.SHAPES["swe"], 8, 4)
    head, rows = shown("gaps")
    for name, value in zip(head[1:], rows[str(cell)], strict=True):
        plain = name.strip("`")
        assert script.percent(cell.mean(lambda c, x, n=plain: script.gap(c, x, n))) == value
    head, rows = shown("wrong")
    worst = max(cell.mean(lambda c, x, f=f: script.lost(c, x, "lb-robust", f)) for f in (0.8, 1.2))
    assert script.percent(worst) == rows[str(cell)][head[1:].index("`lb-robust`")]
    two = ("lb-micro", "sorted-slice")
    before, after = (cell.mean(lambda c, x, n=n: script.idle(c, x, n, meets=True)) for n in two)
    assert shown("collective")[1]["swe, 4 a device"][0] == f"{script.percent(before, 1)} → {script.percent(after, 1)}"
    head, rows = shown("beyond")
    [(name, *computed)] = script.unplanned.rows({"swe": script.SHAPES["swe"]})
    assert head == script.unplanned.head()
    assert computed == rows[name]


def test_in_no_cell_of_the_table_is_sorted_slice_behind():
    _, rows = shown("collective")
    pairs = [[float(share) for share in cell.split(" → ")] for row in rows.values() for cell in row]
    assert len(pairs) == 36
    assert all(after <= before for before, after in pairs)
    assert sum(after < before for before, after in pairs) > 18


def test_only_what_is_between_the_marks_is_replaced():
    page = "one\n<!-- a -->\nold\n<!-- /a -->\ntwo\n<!-- b -->\n<!-- /b -->\n"
    found = script.put(script.put(page, "a", "new"), "a", "newer")
    assert found == "one\n<!-- a -->\n\nnewer\n\n<!-- /a -->\ntwo\n<!-- b -->\n<!-- /b -->\n"
    with pytest.raises(SystemExit, match="no place for 'c'"):
        script.put(page, "c", "new")
