"""Which words of a question a command and its function in Python take: flags and arguments follow from one list."""

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from odcsim.errors import InputError, misspelled, unexpected
from odcsim.option import ROWS
from odcsim.question import FIELDS
from odcsim.recipe import ASKED, CHOICES, PART, SEARCHED

OF_ROWS = tuple(name for name, about in FIELDS.items() if about.group == ROWS)  # what tables of rows alone act on
IDLE = tuple(name for name in OF_ROWS if name not in ("price", "trainer"))  # of those, what a step of RL has no use for


@dataclass(frozen=True, slots=True)
class Taken:
    """Of a question's fields all but those `without` which the answer does, or that it decides itself; of a recipe's
    these. `usual`: of fields of which the answer takes another value where nobody says."""

    call: str
    without: tuple[str, ...] = ()
    recipe: tuple[str, ...] = ASKED
    usual: Mapping[str, Any] = field(default_factory=dict)

    def words(self, given: Mapping[str, Any], own: Collection[str] = ()) -> dict[str, Any]:
        """The words of a question, of which all that are given are known. `own`: arguments of the function beside them,
        which may have been meant."""
        known = [*(name for name in FIELDS if name not in self.without), *self.recipe]
        known += [PART] if "recompute" in self.recipe else []
        if odd := [name for name in given if name not in known]:
            every = [*known, *own]
            idle = "it decides that itself, or has no use for it" if odd[0] in {*FIELDS, *CHOICES} else ""
            raise unexpected(self.call, odd[0], every, misspelled(odd[0], every, alike=0.8) or idle)
        return {**self.usual, **given}

    def signature(self, function: Callable[..., Any]) -> inspect.Signature:
        """What `help` and editors show: every word, with its usual value."""
        whole = inspect.signature(function)
        empty = inspect.Parameter.empty  # what lengths may be given as takes a page to say
        every = [one.replace(annotation=empty) if one.name == "trace" else one for one in whole.parameters.values()]
        named = [one for one in every if one.kind != inspect.Parameter.VAR_KEYWORD]
        usual = {name: about.usual for name, about in FIELDS.items() if name not in self.without}
        usual |= {name: CHOICES[name].usual for name in self.recipe}
        usual |= self.usual
        rest = {name: value for name, value in usual.items() if name not in whole.parameters}
        words = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=of) for name, of in rest.items()]
        return whole.replace(parameters=[*named, *words])


def paths_of(name: str, given: Any) -> list[str]:
    """Of one file, or of several."""
    every = [given] if isinstance(given, str | os.PathLike) or not hasattr(given, "__iter__") else list(given)
    if odd := [one for one in every if not isinstance(one, str | os.PathLike)]:
        raise InputError(f"{name} holds {odd[0]!r:.40}", fix="give the path of a file, or several")
    return [os.fspath(one) for one in every]


ASK = Taken("ask", recipe=tuple(name for name, choice in CHOICES.items() if not choice.hidden))
# What is searched or asked for in several values; and what holds of rows that are compared alone.
ADVISE = Taken(
    "advise",
    ("gpu", "devices", "devices_per_node", "minibatch", "max_tokens", "price", "whole",
     "field"),
    tuple(name for name in ASKED if name not in SEARCHED),
    {"minibatches": 96, "epochs": 1.0},
)  # fmt: skip
BREAK_EVEN = Taken("break_even", (*OF_ROWS, "minibatches"))
RAN = tuple(name for name in OF_ROWS if name != "trainer")
FIT = Taken("fit", (*RAN, "profile", "trace"))  # what was measured does not have these
# Of a run that was seen; the lengths, devices and batch of a log of steps, which does not say them.
DIAGNOSE = Taken(
    "diagnose",
    (*(name for name in RAN if name != "price"), *"trace profile minibatches seed in_order".split()),
    usual={"devices": None},
)
# Prompts, rollouts and steps say these.
RL = Taken("rl", (*IDLE, "minibatch", "global_batch", "minibatches", "in_order"))
