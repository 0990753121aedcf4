"""Which words of a question a command and its function in Python take: flags and arguments follow from one list."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from odcsim.errors import InputError, misspelled, unexpected
from odcsim.option import ROWS
from odcsim.question import FIELDS
from odcsim.recipe import ASKED, CHOICES, PART, SEARCHED

P = ParamSpec("P")
R = TypeVar("R")
OF_ROWS = tuple(name for name, about in FIELDS.items() if about.group == ROWS)  # what tables of rows alone act on
IDLE = tuple(name for name in OF_ROWS if name not in ("price", "trainer"))  # of those, what a step of RL has no use for


@dataclass(frozen=True, slots=True)
class Words:
    """Of a question's fields all but those `without` which the answer does, or that it decides itself; of a recipe's
    these. `usual`: of fields of which the answer takes another value where nobody says."""

    without: tuple[str, ...] = ()
    recipe: tuple[str, ...] = ASKED
    usual: Mapping[str, Any] = field(default_factory=dict)

    def take(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function with these words beside its own arguments, any other of which is refused."""
        own = {*inspect.signature(function).parameters} - {"words"}
        known = {*FIELDS} - {*self.without} | {*self.recipe, *own} | ({PART} if "recompute" in self.recipe else set())

        @wraps(function)
        def call(*args: P.args, **words: P.kwargs) -> R:
            if odd := [name for name in words if name not in known]:
                idle = "it decides that itself, or has no use for it" if odd[0] in {*FIELDS, *CHOICES} else ""
                why = misspelled(odd[0], sorted(known), alike=0.8) or idle
                raise unexpected(function.__name__, odd[0], [*known], why)
            return function(*args, **{**self.usual, **words})

        return self.show(call)

    def show(self, function: Callable[P, R]) -> Callable[P, R]:
        """For `help` and editors: every word, with its usual value."""
        own = inspect.signature(function)
        every = [one for one in own.parameters.values() if one.kind != inspect.Parameter.VAR_KEYWORD]
        # What lengths may be given as takes a page to say.
        every = [one.replace(annotation=one.empty) if one.name == "trace" else one for one in every]
        usual = {name: about.usual for name, about in FIELDS.items() if name not in self.without}
        usual = {**usual, **{name: CHOICES[name].usual for name in self.recipe}, **self.usual}
        rest = {name: value for name, value in usual.items() if name not in own.parameters}
        every += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=of) for name, of in rest.items()]
        function.__signature__ = own.replace(parameters=every)  # type: ignore[attr-defined]
        return function


def paths_of(name: str, given: Any) -> list[str]:
    """Of one file, or of several."""
    every = [given] if isinstance(given, str | os.PathLike) or not hasattr(given, "__iter__") else list(given)
    if odd := [one for one in every if not isinstance(one, str | os.PathLike)]:
        raise InputError(f"{name} holds {odd[0]!r:.40}", fix="give the path of a file, or several")
    return [os.fspath(one) for one in every]


BY, MORE = "odcsim advise", "odcsim sweep"  # which command searches what was held fixed
HELD = tuple(name for name in ASKED if name not in SEARCHED)  # by an advice

ASK = Words(recipe=tuple(name for name, choice in CHOICES.items() if not choice.hidden))
COMPARE = Words()
BALANCE = Words(OF_ROWS)
# What is searched or asked for in several values; and what holds of rows that are compared alone.
ADVISE = Words(
    ("gpu", "devices", "devices_per_node", "minibatch", "max_tokens", "price", "whole", "field"),
    HELD,
    {"minibatches": 96, "epochs": 1.0},
)  # fmt: skip
BREAK_EVEN = Words((*OF_ROWS, "minibatches"))
# Of a run that exists: of GPUs that share sequences its files and logs say nothing.
OF_RUNS = tuple(name for name in ASKED if name != "context")
RAN = tuple(name for name in OF_ROWS if name != "trainer")
FIT = Words((*RAN, "profile", "trace"), OF_RUNS)  # what was measured does not have these
# Of a run that was seen; the lengths, devices and batch of a log of steps, which does not say them.
DIAGNOSE = Words(
    (*(name for name in RAN if name != "price"), *"trace profile minibatches seed in_order group_by_length".split()),
    OF_RUNS,
    usual={"devices": None},
)
# A trainer's configuration says all else.
AUDIT = Words(
    (*OF_ROWS,
     *"trace minibatches in_order group_by_length on_demand_cost minibatch global_batch max_tokens".split()),
    (),
    usual={"devices": None},
)  # fmt: skip
# Prompts, rollouts and steps say these.
RL = Words((*IDLE, "minibatch", "global_batch", "minibatches", "in_order", "group_by_length"))
