"""How a choice of the recipe travels: inside the recipe, from whoever asks down to the place that acts on it.

Passed on by itself it would spread over the house: a parameter here, a field there, and each new choice the same again.
"""

import ast
from functools import cache
from pathlib import Path

import pytest
from sources import ENGINE, ODCSIM

from odcsim.recipe import CHOICES, KERNELS

ASKING = ("cli", "show", "plots", "decide")
SEVERAL = {"sync", "sharding"}  # of which these rooms try several for one recipe
OLDEST = {"sync", "recompute", "sharding", "accumulate", "exchange"}  # which most of the house acts on
NEW = 6
# What else is called so: what torch calls its own, and what every training step has.
ELSEWHERE = {"dtype", "reshard", "streams", "attention", "loss", "optimizer", "stack"}
# The first try what there is, as tests do; the second say it in other trainers' words.
SPREAD = ("odc_engine.doctor.probes.", "odcsim.neighbours.")


@cache
def names(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for field in ("id", "attr", "arg", "value"):
            if isinstance(name := getattr(node, field, None), str):
                found.add(name)
    return frozenset(found)


def own(path: Path) -> set[str]:
    """What a file's functions take, and its values hold, each by itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            found |= {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        elif isinstance(node, ast.ClassDef):
            found |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
    return found


@pytest.mark.parametrize("room", ASKING)
def test_who_asks_passes_choices_on_inside_a_recipe(room):
    there = {module: path for module, path in ODCSIM.items() if module.startswith(f"odcsim.{room}")}
    assert there
    passed = {module: own(path) & set(CHOICES) - SEVERAL for module, path in there.items()}
    assert {module: found for module, found in passed.items() if found} == {}


def read_of_kernels(path: Path) -> set[str]:
    """Kernels' choices that a file reads, of whichever recipe."""
    nodes = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute))
    return {n.attr for n in nodes if isinstance(n.value, ast.Attribute) and n.value.attr == "kernels"} & set(KERNELS)


def test_estimates_alone_know_kernels_and_stack():
    found = {module: read_of_kernels(path) for module, path in (ODCSIM | ENGINE).items()}
    readers = {module: names for module, names in found.items() if names}
    assert set().union(*readers.values()) == set(KERNELS)
    assert all(module.startswith("odcsim.catalog.estimates.") for module in readers)


@pytest.mark.parametrize("name", sorted(set(CHOICES) - ELSEWHERE))
def test_a_choice_is_named_where_it_is_acted_on_and_nowhere_else(name):
    found = {m for m, path in (ODCSIM | ENGINE).items() if name in names(path) and not m.startswith(SPREAD)}
    assert "odcsim.recipe" in found
    assert name in OLDEST or len(found) <= NEW, found
