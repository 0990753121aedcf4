"""What somebody told a trainer: values by name, and which of them were read.

Names are those of files and command lines alike: `--max-length` of a command is `max_length` of a file, and what is
nested there has dots. Nothing is swallowed: what a reader did not ask for is known to make no difference, or is named.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.support.values import LARGEST, Given

WORDS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
NOTHING = ("none", "null", "~", "")


class RunEnds(InputError):
    """What a trainer is told and would not run: it would end with an error of its own, or hang."""


def is_here(path: Path) -> bool:
    """Whether a text is the name of a file, whatever else it may be."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a zero
        return False


def plain(name: str) -> str:
    """A name as all forms have it."""
    return name.lstrip("+~-").replace("-", "_").lower()


def scalar(text: str) -> Any:
    """What a word of a command line is: a number, true or false, nothing, JSON, or a text."""
    low = text.strip().lower()
    if low in WORDS:
        return WORDS[low]
    if low in NOTHING:
        return None
    for kind in (int, float):
        try:
            return kind(low)
        except (ValueError, OverflowError):
            continue
    if low[0] in "[{":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def flatten(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """What is nested, by names with dots; lists stay as they are."""
    for name, value in values.items():
        full = f"{within}.{name}" if within else str(name)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, full)
        else:
            yield full, value


class Values:
    """By name, with a note of what was asked for. `usual`: what a trainer takes where nobody says, of those names that
    its own classes told; readers know the others."""

    def __init__(
        self, given: Mapping[str, Any], where: str, usual: Mapping[str, Any] | None = None, folder: Path = Path()
    ) -> None:
        self.where, self.folder = where, folder
        self.names = {plain(name): name for name, _ in flatten(given)}
        self._given = {plain(name): value for name, value in flatten(given)}
        self._usual = {plain(name): value for name, value in (usual or {}).items()}
        self._read: set[str] = set()
        self.notes: list[str] = []  # settings that do nothing, or that fight each other

    def __contains__(self, name: str) -> bool:
        """Whether somebody said anything else than nothing."""
        return self._given.get(plain(name)) is not None

    def get(self, name: str, default: Any = None) -> Any:
        key = plain(name)
        self._read.add(key)
        found = self._given.get(key)
        return self._usual.get(key, default) if found is None else found

    def given(self, name: str | Iterable[str], default: Any = None) -> Given:
        """Of several names of one thing the first that somebody used; all of them are read."""
        names = [name] if isinstance(name, str) else list(name)
        every = [Given(self.names.get(plain(one), one), self.get(one, default), self.where) for one in names]
        said = [one for one in every if one.name in self]
        usual = [one for one in every if self._usual.get(plain(one.name)) is not None]
        return [*said, *usual, every[0]][0]

    def whole(self, name: str | Iterable[str], default: int, least: int = 1) -> int:
        """`default` where nobody says, or where somebody says that nothing is meant."""
        given = self.given(name, default)
        if isinstance(given.value, str):
            given = Given(given.name, scalar(given.value), given.where)
        if isinstance(given.value, float) and given.value.is_integer():
            given = Given(given.name, int(given.value), given.where)
        return given.whole(least)

    def number(self, name: str, default: float) -> float:
        given = self.given(name, default)
        value = scalar(given.value) if isinstance(given.value, str) else given.value
        return float(Given(given.name, value, given.where).number(0.0, LARGEST))

    def flag(self, name: str, default: bool = False) -> bool:
        """A flag without a value is true."""
        key = plain(name)
        self._read.add(key)
        if key in self._given and self._given[key] is None and self.names[key].startswith("--"):
            return True
        given = self.given(name, default)
        value = WORDS.get(given.value.lower(), given.value) if isinstance(given.value, str) else given.value
        return Given(given.name, value, given.where).flag()

    def text(self, name: str, default: str = "") -> str:
        return str(self.get(name, default))

    def first(self, names: Iterable[str], default: Any = None) -> Any:
        """Of several names of one thing the value of the first that somebody used."""
        return self.given(names, default).value

    def under(self, prefix: str) -> dict[str, Any]:
        """All that is nested there, or that begins so."""
        start = plain(prefix)
        found = {key: value for key, value in self._given.items() if key.startswith(start)}
        self._read.update(found)
        return found

    def refuse_over(self, names: Iterable[str], what: str) -> None:
        """Numbers that have to be 1, since no estimate here models `what`."""
        for name in names:
            value = self.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                fix = "ask with it at 1, or measure such a run ('odcsim fit --help')"
                problem = f"{self.names[plain(name)]} is {value}, and no estimate models {what}"
                raise InputError(problem, where=self.where, fix=fix)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def unread(self, known: Collection[str] = (), prefixes: Collection[str] = ()) -> list[str]:
        """What nobody asked for and nobody knows, as it is spelled."""
        plain_known, begins = {plain(name) for name in known}, tuple(plain(name) for name in prefixes)

        def makes_no_difference(key: str) -> bool:
            parts = key.split(".")
            return key.startswith(begins) or any(".".join(parts[: i + 1]) in plain_known for i in range(len(parts)))

        return [self.names[key] for key in self._given if key not in self._read and not makes_no_difference(key)]
