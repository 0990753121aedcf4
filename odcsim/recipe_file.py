"""A recipe as a file: what flags say, by the same words, in TOML."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from odcsim.errors import InputError, nearest
from odcsim.recipe import CHOICES, PART, RECOMPUTE, SELECTIVE, Choice, fields_of
from odcsim.support.checked import Given
from odcsim.support.files import reading
from odcsim.support.whole import read_text

COMPILE = "compile"
KEYS = (*(name for name, choice in CHOICES.items() if choice.flag), PART, COMPILE)


def read(path: Path | str) -> dict[str, Any]:
    """The fields that the file chooses. Those that one command alone acts on are read for all."""
    where = str(path)
    chosen: dict[str, Any] = {}
    with reading(path, missing="give a recipe's TOML file", expected="TOML"):
        content: Mapping[str, Any] = tomllib.loads(read_text(path))
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"unknown key {key!r:.40}", where=where, fix=nearest(key, list(KEYS)))
        chosen |= words(key, Given(key, value, where))
    return fields_of(chosen)


def words(key: str, given: Given) -> Mapping[str, Any]:
    """What one of `KEYS` says, of which `fields_of` makes fields."""
    if key == COMPILE:
        return {"stack": "compiled"} if given.flag() else {}
    if key == PART:
        return {key: given.one_of(SELECTIVE)}
    if key == "recompute":
        return {key: given.value if isinstance(given.value, bool) else _again(given)}
    return {key: _value(CHOICES[key], given)}


def _again(given: Given) -> str:
    """Megatron's name of it is as good."""
    return "operators" if given.value == "selective" else given.one_of(RECOMPUTE)


def _value(choice: Choice, given: Given) -> Any:
    if isinstance(choice.usual, bool):
        return given.flag()
    if isinstance(choice.usual, int):
        return given.whole(0)
    return given.one_of(choice.values) if choice.values else given.text()
