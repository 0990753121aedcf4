"""The table of assumptions in docs/model/index.md has every section of the pages of its folder, and tests of each."""

from scripts import load

study = load("docs/studies/assumptions.py")
INDEX = study.INDEX.read_text(encoding="utf-8")


def test_the_table_is_that_of_the_pages():
    """Where it is not, run `python docs/studies/assumptions.py`."""
    assert study.renewed(INDEX) == INDEX


def test_every_assumption_is_in_it_with_a_test_and_none_is_lost_when_it_is_renewed():
    found = list(study.assumptions(INDEX))
    assert len({assumption.where for assumption in found}) == len(found) > 40
    assert [assumption.title for assumption in found if not assumption.tests] == []
    assert sum(len(assumption.tests) for assumption in found) == INDEX.count("::test_") > 100


def test_an_assumption_that_is_new_has_no_test_and_one_that_is_gone_no_row():
    page = (study.FOLDER / "memory.md").read_text(encoding="utf-8")
    every = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    old = "| [Old](memory.md#old) | `tests/test_a.py::test_b` |"
    text = f"- [Memory](memory.md)\n\n{study.BEGIN}\n{old}\n{study.END}\n\nb\n"
    assert [(one.title, one.tests) for one in study.assumptions(text)] == [(title, ()) for title in every]
    new = study.table(text)
    assert study.renewed(text) == f"- [Memory](memory.md)\n\n{study.BEGIN}\n\n{new}\n\n{study.END}\n\nb\n"
    assert "Old" not in new
