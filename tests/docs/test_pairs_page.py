"""docs/pairs.md is what its study writes, and an audit names as many changes, as near, as it says."""

import re

import pytest
import scripts

study = scripts.load("docs/studies/pairs.py")
PAGE = (scripts.ROOT / "docs/pairs.md").read_text(encoding="utf-8")
QUICK = ("Compiled, after packing", "Padding-free full finetuning on one GPU")
NAMED, NEAR, BOTH = 29, 25, 23  # of 31


@pytest.fixture(scope="module")
def every():
    return study.outcomes()


@pytest.mark.parametrize("title", QUICK)
def test_a_row_of_the_page_is_what_the_study_finds(title):
    (pair,) = (pair for pair in study.read()["pair"] if pair["title"] == title)
    assert study.pairs_page.row(study.outcome(pair)) in PAGE.splitlines()


def test_every_pair_is_priced_or_says_why_not_and_what_is_assumed():
    pairs = study.read()["pair"]
    asked = [pair["asked"] for pair in pairs if "unpriced" not in pair["asked"]]
    assert len(asked) >= 15
    assert all(one["assumed"].strip() and one["lengths"] for one in asked)
    assert all(pair["asked"]["unpriced"].strip() for pair in pairs if pair["asked"] not in asked)


@pytest.mark.slow
def test_at_least_as_many_changes_are_named_and_near_as_the_page_says(every):
    assert sum(one.place > 0 for one in every) >= NAMED
    assert sum(one.near for one in every) >= NEAR
    assert sum(one.near and one.place > 0 for one in every) >= BOTH


@pytest.mark.slow
def test_the_page_is_what_the_study_writes(every):
    """In whatever month."""
    texts = (study.pairs_page.page(every, study.read()["pair"]), PAGE)
    anew, there = (re.sub(r"\d{4}-\d\d, on a machine", "", text) for text in texts)
    assert anew == there
