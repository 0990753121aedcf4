"""The one error a user is meant to see."""

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
# A flag with the number behind it; not in a command that is quoted, nor in what somebody wrote.
_FLAG = re.compile(r"'odcsim [^']*'|(?<![\w'\"-])--(?:no-)?([a-z]+(?:-[a-z]+)*)(?: (\d[\d,]*(?:\.\d+)?)(?![\w=,]))?")


class InputError(Exception):
    """Bad input, told in one line: where it stands, what is wrong with which value, and the way out.

    The command line prints it and exits with 2. Whatever else is raised is a defect of ours.
    """

    def __init__(self, problem: str, *, where: str = "", fix: str = "") -> None:
        self.problem, self.where, self.fix = problem, where, fix
        line = f"{where}: {problem}" if where else problem
        super().__init__(f"{line}; {fix}" if fix else line)


def in_python(text: str) -> str:
    """`--max-tokens 4,096` is max_tokens=4096 in Python, and `--devices` is devices."""

    def argument(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        name = match[1].replace("-", "_")
        return name if match[2] is None else f"{name}={match[2].replace(',', '')}"

    return _FLAG.sub(argument, text)


def offered(function: Callable[P, R]) -> Callable[P, R]:
    """A function as `odcsim` offers it: what it refuses is named as in Python, and not as on a command line."""

    @wraps(function)
    def call(*args: P.args, **words: P.kwargs) -> R:
        try:
            return function(*args, **words)
        except InputError as error:
            raise InputError(in_python(error.problem), where=error.where, fix=in_python(error.fix)) from None

    call.__module__ = "odcsim"  # where pickle finds it
    return call


def unexpected(call: str, name: str, known: list[str], why: str = "") -> TypeError:
    """Of a word that a function does not take, with the one that was meant."""
    return TypeError(f"{call}() got an unexpected keyword argument '{name}': {why or nearest(name, sorted(known))}")


def nearest(name: object, known: list[str]) -> str:
    """The known name that looks most like `name`, as a hint to put into an error's way out."""
    import difflib

    match = difflib.get_close_matches(str(name).lower(), [k.lower() for k in known], n=1, cutoff=0.4)
    if match:
        return f"did you mean '{next(k for k in known if k.lower() == match[0])}'?"
    return "known: " + ", ".join(known)


def misspelled(name: object, known: list[str], alike: float = 0.0) -> str:
    """A hint at the name that somebody meant and wrote wrongly; none where the two may well be two things.

    `glm4v` is no slip for `glm4`: what one name has beyond the other, or other digits, tells kinds apart. `alike`: of
    names of one kind, of which that many letters must be the same.
    """
    import difflib

    if len(text := str(name)) > 100:
        return ""
    low, names = text.lower(), {k.lower(): k for k in known}
    for match in difflib.get_close_matches(low, list(names), n=3, cutoff=alike or 0.8):
        apart = low.startswith(match) or match.startswith(low) or _digits(low) != _digits(match)
        if alike or not apart:
            return f"did you mean '{names[match]}'?"
    return ""


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))
