"""A question by names and paths becomes a setting: lengths are read, and what things cost is looked up."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from odcsim.catalog import fits
from odcsim.decide import sharding, stock
from odcsim.decide.setting import Setting, cost_of
from odcsim.decide.unmeasured import widen
from odcsim.decide.words import ASK
from odcsim.errors import InputError
from odcsim.question import FIELDS, LENGTHS, TERMS, Question, question_of
from odcsim.reading import load
from odcsim.support.values import whole_numbers
from odcsim.trace import Trace


@ASK.show
def ask(trace: Trace | str | os.PathLike[str] | ArrayLike, model: str, **words: Any) -> Setting:
    """A setting by names and paths, as the command line takes them, or by lengths. `words`: the other fields of a
    question, `devices=16`, and of its recipe, `sharding="hybrid"`. `max_tokens`: nothing for what memory and speed make
    best, 0 for the longest sample."""
    return setting_of(question_by({"trace": trace, "model": model, **words}))


def question_by(words: Mapping[str, Any]) -> Question:
    """The question of these words. What nobody chose of a recipe is what a profile was measured with, else the
    trainer's."""
    given = words.get("profile")
    profile = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    usual = fits.measured_by(profile) if profile else stock.assumed(words.get("trainer"))
    return question_of({**usual, **words})


def setting_of(question: Question, *, limited: bool = True) -> Setting:
    """Not `limited`: without the search for a token limit, where nobody gave one."""
    share, question = question.share, read(question)
    cost = cost_of(
        question.model,
        question.gpu,
        question.profile,
        question.devices,
        question.devices_per_node,
        question.cluster,
        recipe=question.recipe,
    )
    unsharded = Setting(
        question.trace,
        replace(cost, on_demand_cost=question.on_demand_cost),
        share,
        question.max_tokens or 0,
        model_asked=question.model,
        global_batch=question.global_batch or 0,
        question=question,
        **{name: getattr(question, name) for name in TERMS},
    )
    setting = sharding.by_rule(unsharded)
    return widen(sharding.with_limit(setting) if limited and question.max_tokens is None else setting)


def lengths_of(question: Question) -> Trace:
    """Read as the question says, or as they were given."""
    how, given = {name: getattr(question, name) for name in LENGTHS if name != "trace"}, question.trace
    if isinstance(given, str | os.PathLike):
        return load(given if isinstance(given, str) else Path(given), **how)
    if odd := [name for name, value in how.items() if value != FIELDS[name].usual]:
        fix = "give the name of a file, or lengths that are read already"
        raise InputError(f"{odd[0]} with lengths that nobody reads", fix=fix)
    return given if isinstance(given, Trace) else Trace("lengths", whole_numbers("length", given, 1))


def read(question: Question) -> Question:
    """The same with its lengths read, for who asks it in several ways."""
    return replace(question, **{name: FIELDS[name].usual for name in LENGTHS} | {"trace": lengths_of(question)})
