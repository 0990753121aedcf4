"""In how many files a choice of the recipe is named: a field that is passed on by itself would spread over the house.

Counted are names and texts of the code, not words of comments. Those of today's fields were counted when they had just
been gathered into the recipe, and stand for the places that act on them, or measure what they do (four are newer:
rivals that run against each other, plans for trainers that others wrote, plans of theirs that are checked, and rows
that they are told).
"""

import ast
from functools import cache
from pathlib import Path

import pytest
from sources import ENGINE, ODCSIM

from odcsim.recipe import CHOICES

CEILINGS = {"sync": 27, "prefetch": 3, "recompute": 19, "sharding": 12, "accumulate": 13}
CEILINGS["exchange"] = 8  # one of them what threads of a process do, one what an advice searches
for told in ("sync", "recompute", "sharding"):  # of rows that other trainers are told
    CEILINGS[told] += 1
CEILINGS["sync"] += 1  # of rows that a grid keeps
CEILINGS["sync"] += 2  # what every command has its rows from, and an offer of an advice
NEW = 6
# What else is called so: what torch calls its own, and what every training step has.
ELSEWHERE = {"dtype", "reshard", "streams", "attention", "loss", "optimizer", "stack"}
PROBES = "odc_engine.doctor.probes."  # which try what there is, as tests do


@cache
def names(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for field in ("id", "attr", "arg", "value"):
            if isinstance(name := getattr(node, field, None), str):
                found.add(name)
    return frozenset(found)


def naming(name: str) -> list[str]:
    return sorted(
        module for module, path in (ODCSIM | ENGINE).items() if name in names(path) and not module.startswith(PROBES)
    )


@pytest.mark.parametrize("name", sorted(set(CHOICES) - ELSEWHERE))
def test_a_choice_is_named_where_it_is_acted_on_and_nowhere_else(name):
    found = naming(name)
    assert "odcsim.recipe" in found
    assert len(found) <= CEILINGS.get(name, NEW), found


def test_ceilings_are_those_of_fields():
    assert set(CEILINGS) <= set(CHOICES)
