"""Options that several commands share, and what they mean."""

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from odcsim.command import add_recipe, amount, chosen, whole
from odcsim.question import EXECUTORS, FIELDS, FROM_ZERO, LENGTHS, ROWS, Field, Question, question_of
from odcsim.recipe import USUAL

if TYPE_CHECKING:
    from odcsim.questions.setting import Setting
    from odcsim.trace import Trace

__all__ = ["EXECUTORS", "amount", "seed", "whole"]
HARDWARE = ("gpu", "profile", "devices_per_node", "cluster")
EITHER = (("truncate", "drop_over"), ("minibatch", "global_batch"))  # of which one can be given
SOME = tuple(name for name, about in FIELDS.items() if about.group == ROWS)  # what tables of rows alone act on
NEEDED = ("model", "devices", "minibatch", "global_batch")
seed = FROM_ZERO.said


def add_question(
    parser: argparse.ArgumentParser,
    *,
    without: Collection[str] = (),
    recipe: Iterable[str] | None = None,
    **usual: Any,
) -> None:
    """Flags of a question's fields and of its recipe's, but not of what the command decides itself. `usual`: what the
    command takes where nobody says, if that is another value."""
    add_fields(parser, [name for name in FIELDS if name not in without], **usual)
    add_recipe(parser, USUAL.inputs() if recipe is None else recipe)


def add_fields(parser: argparse.ArgumentParser, names: Collection[str], **usual: Any) -> None:
    """Flags of these fields."""
    either: dict[str, Any] = {}
    for few in EITHER:
        if set(few) <= set(names):
            group = parser.add_mutually_exclusive_group(required=few[0] in NEEDED)
            either |= dict.fromkeys(few, group)
    for name in names:
        how = _how(name, FIELDS[name], usual.get(name, FIELDS[name].usual))
        if name == "trace":
            parser.add_argument(name, metavar="TRACE", help=how["help"])
            continue
        needed = {"required": True} if name in NEEDED and name not in either else {}
        either.get(name, parser).add_argument(f"--{name.replace('_', '-')}", **how, **needed)
    if set(LENGTHS) & set(names):
        words = "report tokens lost at a limit of T, without applying it"
        parser.add_argument("--cutoff", metavar="T", type=whole, help=words)


def _how(name: str, about: Field, usual: Any) -> dict[str, Any]:
    if about.values.type is bool:
        return {"action": "store_true", "help": about.help}
    told = "" if usual in (None, "") or name in NEEDED else f" ({usual})"
    known = {"help": f"{about.help}{told}", "default": None if name in NEEDED else usual}
    if about.values.among:
        return known | {"choices": about.values.among}
    return known | {"metavar": about.letter, "type": about.values.said}


def add_hardware(parser: argparse.ArgumentParser) -> None:
    add_fields(parser, HARDWARE)


def asked(args: argparse.Namespace, **more: Any) -> Question:
    """The question that the flags say, with its lengths read."""
    from odcsim.questions.asking import read

    words = {name: getattr(args, name) for name in FIELDS if getattr(args, name, None) is not None}
    question = read(question_of(words | chosen(args) | more))
    tell_cutoff(question.trace, args.cutoff)
    return question


def setting_of(args: argparse.Namespace) -> "Setting":
    from odcsim.questions.asking import setting_of as setting

    return setting(asked(args))


def loaded(args: argparse.Namespace, source: str) -> "Trace":
    """Lengths from there, read as the flags say."""
    from odcsim.questions.asking import lengths_of

    how = {name: getattr(args, name) for name in LENGTHS if getattr(args, name, None) is not None}
    return lengths_of(Question(**{**how, "trace": source}))


def tell_cutoff(trace: "Trace", at: int | None) -> None:
    """On stderr, so that results stay what they are."""
    if at is not None:
        from odcsim.reading.stats import cut_lines

        print(*cut_lines(trace, at), sep="\n", file=sys.stderr)


def print_json(content: Any) -> None:
    """JSON knows no number that is not finite: a share of nothing, say, is null."""
    print(json.dumps(_finite(content), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(of) for of in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
