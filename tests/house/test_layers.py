"""The layers of docs/design.md: imports never climb, and no name stands for two classes."""

import ast
import re
from collections import Counter

import pytest
from scripts import ROOT
from sources import ENGINE, ODCSIM, inside

TABLE = re.compile(r"^\| layer of `odcsim` .*\n\|-.*\n((?:\|.*\n)+)", re.MULTILINE)
TOLD = TABLE.findall((ROOT / "docs/design.md").read_text(encoding="utf-8"))
LAYERS = [re.findall(r"`(\w+)`", line) for line in "".join(TOLD).splitlines()]  # the highest first
LAYER = {place: number for number, places in enumerate(LAYERS) for place in places}
OUTSIDE = {"odcsim", "odcsim.__main__"}  # the package, which hands out public names of all layers
MODULES = sorted(set(ODCSIM) - OUTSIDE)


def place_of(module: str) -> str:
    return module.split(".")[1]


def test_every_place_at_the_top_has_one_layer():
    assert Counter(place for places in LAYERS for place in places) == Counter({place_of(one) for one in MODULES})


@pytest.mark.parametrize("module", MODULES)
def test_imports_never_climb(module):
    known = inside(ODCSIM[module], ODCSIM) - OUTSIDE
    assert {name for name in known if LAYER[place_of(name)] < LAYER[place_of(module)]} == set()


def test_no_name_stands_for_two_classes():
    """But for what a module keeps to itself."""
    every = Counter(
        node.name
        for path in (ODCSIM | ENGINE).values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert every["Recipe"] == 1
    assert [name for name, count in every.items() if count > 1] == []
