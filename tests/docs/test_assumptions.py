"""The table of assumptions in docs/model/index.md says what the pages of its folder say."""

from scripts import load

study = load("docs/studies/assumptions.py")


def test_the_table_is_that_of_the_pages():
    """Where it is not, run `python docs/studies/assumptions.py`."""
    text = study.INDEX.read_text(encoding="utf-8")
    assert study.renewed(text) == text


def test_every_assumption_is_in_it_with_a_test():
    found = list(study.assumptions())
    assert len(found) > 40
    assert [assumption.title for assumption in found if not assumption.tests] == []
    assert len({assumption.where for assumption in found}) == len(found)


def test_what_stands_around_the_table_stays():
    text = f"a\n\n{study.BEGIN}\nold\n{study.END}\n\nb\n"
    assert study.renewed(text) == f"a\n\n{study.BEGIN}\n\n{study.table()}\n\n{study.END}\n\nb\n"
