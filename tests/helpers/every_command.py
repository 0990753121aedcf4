"""Every command of both packages, and a line that calls one of them as far as its flags go."""

import argparse
from typing import Any

import odc_engine.cli
import odcsim.cli
from odcsim.option import Option
from odcsim.support.numbers import listed

PROGRAMS: dict[str, Any] = {"odcsim": odcsim.cli, "odc_engine": odc_engine.cli}


def commands() -> dict[str, Any]:
    """The parser of each command that does something, by the words that call it."""
    found: dict[str, Any] = {}

    def below(words: str, parser: Any) -> None:
        inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for word, command in (pair for action in inner for pair in action.choices.items()):
            below(f"{words} {word}", command.complete())
        if not inner:
            found[words] = parser

    for name, program in PROGRAMS.items():
        below(name, program.build_parser())
    return found


def main(argv: list[str]) -> int:
    """As a shell has it: a mistake of argparse's is a status, too."""
    try:
        return int(PROGRAMS[argv[0]].main(argv[1:]))
    except SystemExit as end:
        return int(end.code or 0)


def name_of(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def takes_text(action: argparse.Action) -> bool:
    """Whether it takes any words, as the name of a file is: no number, and not one of a few."""
    if action.nargs == 0 or action.choices is not None:
        return False
    kind: Any = action.type
    of = getattr(kind, "__self__", None)
    return kind in (None, str, listed) or (isinstance(of, Option) and of.type is str)


def line(command: str, parser: Any, given: dict[str, list[str]]) -> list[str]:
    """The command with what is given, by the names of options, and something for whatever else it needs."""
    words, either = command.split(), {}
    for group in parser._mutually_exclusive_groups:
        chosen = next((a for a in group._group_actions if name_of(a) in given), group._group_actions[0])
        either |= {id(action): group.required and action is chosen for action in group._group_actions}
    for action in sorted(parser._actions, key=lambda action: bool(action.option_strings)):
        name = name_of(action)
        needed = either.get(id(action), action.required) or (not action.option_strings and action.nargs != "*")
        if name not in given and not needed:
            continue
        usual = list(map(str, action.choices or ()))[:1] or ["nothing" if takes_text(action) else "1"]
        words += [name, *given.get(name, usual)] if action.option_strings else given.get(name, usual)
    return words
