"""What a grid may say: the fields of a question, the words of a recipe's file, and which rows are kept."""

from collections.abc import Mapping
from typing import Any

from odcsim import recipe_file
from odcsim.errors import InputError, nearest
from odcsim.question import FIELDS
from odcsim.support.checked import Given

RECIPE = "recipe"  # a file of recipe words, which words beside it win over
CASE = "case"  # tables of keys that belong together


def read(key: str, given: Given) -> Mapping[str, Any]:
    """What one value says, by the fields that it decides: a word of a recipe may decide several."""
    if key in recipe_file.KEYS:
        return recipe_file.words(key, given)
    return {key: FIELDS[key].values.given(given)}


def refuse_unknown(key: str, where: str) -> None:
    if key not in ALL:
        raise InputError(f"unknown key {key!r:.40}", where=where, fix=nearest(key, list(ALL)))


ROWS = ("balancer", "sync")  # which rows of each comparison are kept; all of them without a word
USUAL: dict[str, Any] = {name: about.usual for name, about in FIELDS.items()}
ALL = (*FIELDS, *recipe_file.KEYS, RECIPE, *ROWS, CASE)
