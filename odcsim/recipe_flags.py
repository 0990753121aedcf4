"""Flags that ask for a recipe, on both command lines: those of its fields, and a file of them."""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from odcsim.errors import InputError
from odcsim.recipe import CHOICES, RECOMPUTE, SELECTIVE, flag
from odcsim.support.command import rare
from odcsim.support.printing import printable

_TAKEN = "fields of a recipe"  # where a command line notes which ones it takes


def add_recipe(parser: "argparse._ActionsContainer", names: Iterable[str]) -> None:
    """Flags that ask for these fields of a recipe, and for a file of it: flags win."""
    taken = tuple(names)
    parser.set_defaults(**{_TAKEN: taken})
    rare(parser.add_argument("--recipe", action=_File, metavar="FILE", help="TOML file with values for these options"))
    for name in taken:
        choice, kind = CHOICES[name], type(CHOICES[name].usual)
        how: dict[str, Any] = {"dest": name, "help": choice.help or None, "default": argparse.SUPPRESS}
        if kind is bool:
            how["action"] = "store_false" if choice.usual else "store_true"
        else:
            how |= {"type": _again if name == "recompute" else kind, "choices": choice.values or None}
            how["required"] = choice.compared
        parser.add_argument(flag(name), **how).rare = not (choice.brief or choice.compared)  # type: ignore[attr-defined]
        if name == "recompute":
            same: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
            parts: dict[str, Any] = {"type": _part, "choices": RECOMPUTE[:3], "metavar": f"{{{','.join(SELECTIVE)}}}"}
            rare(
                parser.add_argument(
                    "--no-recompute", action="store_const", const="none", **same, help="--recompute none"
                )
            )
            rare(parser.add_argument("--selective", **parts, **same, help="--recompute operators, or layers"))
        if name == "stack":
            same = {"dest": name, "default": argparse.SUPPRESS}
            rare(
                parser.add_argument(
                    "--compile", action="store_const", const="compiled", **same, help="--stack compiled"
                )
            )


class _File(argparse.Action):
    """What a file chooses is not asked for again."""

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, path: Any, _: Any = None) -> None:
        from odcsim.recipe_file import read

        try:
            fields = read(path)
        except InputError as error:
            print(f"{parser.prog}: error: {printable(str(error))}", file=sys.stderr)
            raise SystemExit(2) from None
        if idle := [name for name in fields if name not in vars(args)[_TAKEN]]:
            print(
                f"{parser.prog}: leaves out {', '.join(idle)} of {printable(str(path))}: no flag here", file=sys.stderr
            )
        args.recipe, args.recipe_file = fields, str(path)
        for action in parser._actions:
            action.required = action.required and action.dest not in fields


def _again(text: str) -> str:
    """Megatron's name of it is as good."""
    return "operators" if text == "selective" else text


def _part(text: str) -> str:
    return "full" if text == SELECTIVE[0] else text


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Of a recipe what the command line chose, else its file: the rest is as usual."""
    given = {name: getattr(args, name) for name in CHOICES if hasattr(args, name)}
    taken, file = getattr(args, _TAKEN, ()), getattr(args, "recipe", None) or {}
    return {name: value for name, value in file.items() if name in taken} | given
