"""The columns of a sweep's table: always the same ones, so that parts of a sweep and whole sweeps go together."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from odcsim.catalog.estimates.memory import Memory
from odcsim.decide.sweeps import keys
from odcsim.decide.whole_run import RUN
from odcsim.question import FIELDS
from odcsim.recipe import USUAL
from odcsim.results.metrics import PARTS
from odcsim.results.summary import Made, Row

LARGEST = 2**63  # of whole numbers
_RECIPE = USUAL.inputs()
_ASKED = (*FIELDS, *_RECIPE)
_PARTS = {
    "idle_parts": PARTS,
    "memory_terms": tuple(term.name for term in fields(Memory)),
    "made": tuple(one.name for one in fields(Made)),
}


def _kinds() -> dict[str, type]:
    kinds: dict[str, type] = {"point": str}
    kinds |= {name: about.values.type for name, about in FIELDS.items()}
    kinds |= {name: type(value) for name, value in _RECIPE.items()}
    kinds |= dict.fromkeys(("fidelity", *keys.ROWS), str)
    for row in fields(Row):
        if row.name not in (*keys.ROWS, "recipe", "minibatches", "fidelity"):
            names = [f"{row.name}.{part}" for part in _PARTS.get(row.name, ())] or [row.name]
            kinds |= dict.fromkeys(names, bool if row.name == "memory_fits" else float)
    return kinds | {f"run.{name}": int if name == "steps" else float for name in RUN} | {"refused": str}


KINDS = _kinds()  # of every column, in order


def holds(name: str, value: Any) -> bool:
    """Whether a column may hold this value."""
    kind = KINDS.get(name)
    if not is_finite(value) or (isinstance(value, int) and not -LARGEST < value < LARGEST):
        return False
    return type(value) is kind or (kind is float and type(value) is int)


def is_finite(value: Any) -> bool:
    """A file knows no other number: a share of nothing is as good as not there."""
    return not isinstance(value, float) or math.isfinite(value)


def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """By what was asked, numbers as numbers; what was not said comes first."""
    return (*(_rank(row.get(name)) for name in _ASKED), row["point"])


def _rank(value: Any) -> tuple[int, Any]:
    return (0, 0) if value is None else (1, value) if isinstance(value, int | float) else (2, value)
