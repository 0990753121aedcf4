"""What a grid may say: the words of a comparison's flags and of a recipe's file, and how each is read."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from odcsim import recipe_file
from odcsim.checked import Given
from odcsim.command import amount, whole
from odcsim.errors import InputError, nearest
from odcsim.executors.simulation import EXECUTORS
from odcsim.questions.setting import MINIBATCHES

Reader = Callable[[Given], Any]
RECIPE = "recipe"  # a file of recipe words, which words beside it win over
CASE = "case"  # tables of keys that belong together


def read(key: str, given: Given) -> Mapping[str, Any]:
    """What one value says, by the fields that it decides: a word of a recipe may decide several."""
    if key in recipe_file.KEYS:
        return recipe_file.fields(key, given)
    return {key: KEYS[key](given)}


def refuse_unknown(key: str, where: str) -> None:
    if key not in ALL:
        raise InputError(f"unknown key {key!r:.40}", where=where, fix=nearest(key, list(ALL)))


def _text(given: Given) -> str:
    text = given.text()
    return text if text.strip() else given.refuse("expected a name or a file")


def _whole(given: Given) -> int:
    """As people write it, too: "16k"."""
    return int(_said(given, whole)) if isinstance(given.value, str) else given.whole(1, 10**12 - 1)


def _least_zero(given: Given) -> int:
    return given.whole(0, 10**12 - 1)


def _amount(given: Given) -> float:
    return float(_said(given, amount) if isinstance(given.value, str) else given.number())


def _positive(given: Given) -> float:
    return _amount(given) or given.refuse("expected a number above 0")


def _share(given: Given) -> float:
    value = _amount(given)
    return value if value <= 1 else given.refuse("expected a fraction from 0 to 1")


def _executor(given: Given) -> str:
    return given.one_of(EXECUTORS)


def _said(given: Given, reader: Callable[[str], float]) -> float:
    try:
        return reader(given.value)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{given.name}: {error}", where=given.where) from None


KEYS: dict[str, Reader] = {
    "trace": _text,
    "column": _text,
    "tokenizer": _text,
    "sample": _least_zero,
    "truncate": _whole,
    "drop_over": _whole,
    "model": _text,
    "gpu": _text,
    "profile": _text,
    "devices": _whole,
    "devices_per_node": _whole,
    "cluster": _text,
    "minibatch": _whole,
    "global_batch": _whole,
    "max_tokens": _whole,
    "minibatches": _whole,
    "seed": _least_zero,
    "in_order": Given.flag,
    "whole": Given.flag,
    "field": Given.flag,
    "split_overhead": _share,
    "price": _amount,
    "epochs": _positive,
    "executor": _executor,
}
USUAL: dict[str, Any] = dict.fromkeys(KEYS) | {
    "sample": 0,
    "minibatches": MINIBATCHES,
    "seed": 0,
    "in_order": False,
    "whole": False,
    "field": False,
    "executor": "analytic",
}
ROWS = ("balancer", "sync")  # which rows of each comparison are kept; all of them without a word
ALL = (*KEYS, *recipe_file.KEYS, RECIPE, *ROWS, CASE)
