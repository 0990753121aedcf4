"""A question by names and paths, as the command line takes them."""

import math
import os
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from odcsim.checked import whole_numbers
from odcsim.errors import InputError
from odcsim.questions import limit
from odcsim.questions.setting import MINIBATCHES, Setting, cost_of
from odcsim.reading import load
from odcsim.recipe import Recipe
from odcsim.trace import Trace


def ask(
    trace: Trace | str | os.PathLike[str] | ArrayLike,
    model: str,
    *,
    gpu: str | None = None,
    profile: str | None = None,
    devices: int = 8,
    minibatch: int = 4,
    max_tokens: int | None = None,
    minibatches: int = MINIBATCHES,
    seed: int = 0,
    in_order: bool = False,
    devices_per_node: int | None = None,
    cluster: str | None = None,
    split_overhead: float | None = None,
    price: float | None = None,
    whole: bool = False,
    **choices: Any,
) -> Setting:
    """A setting by names and paths, as the command line takes them, or by lengths. `choices`: of the recipe,
    `sharding="hybrid"`. `max_tokens`: None for what memory and speed make best, 0 for the longest sample."""
    wanted = {"devices": devices, "minibatch": minibatch, "minibatches": minibatches}
    for name, value in wanted.items():
        if value < 1:
            raise InputError(f"--{name} is {value}", fix="give at least 1")
    if split_overhead is not None and not 0 <= split_overhead <= 1:
        raise InputError(f"--split-overhead is {split_overhead}", fix="give a fraction from 0 to 1, such as 0.05")
    if price is not None and not 0 <= price < math.inf:
        raise InputError(f"--price is {price}", fix="give dollars for a GPU-hour, such as 2.5")
    cost = cost_of(model, gpu, profile, devices, devices_per_node, cluster, recipe=Recipe(**choices))
    known = minibatches, seed, in_order, split_overhead, price, whole
    setting = Setting(trace_of(trace), cost, minibatch, max_tokens or 0, *known)
    return limit.chosen(setting) if max_tokens is None else setting


def trace_of(given: Trace | str | os.PathLike[str] | ArrayLike) -> Trace:
    """A trace, by its name or as the lengths themselves."""
    if isinstance(given, Trace):
        return given
    if isinstance(given, str | os.PathLike):
        return load(given if isinstance(given, str) else Path(given))
    return Trace("lengths", whole_numbers("length", given, 1))
