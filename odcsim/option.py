"""One choice of a user, declared once: read alike from a command line, from a file and from Python.

The fields of `Question` and of `Recipe` are options. Flags and their help, arguments of `odcsim.ask`, keys and columns
of a sweep, files of a recipe, the explorer's controls and links, and the inputs that a result repeats follow from them.
"""

import argparse
import math
import operator
import os
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from odcsim.errors import InputError, nearest
from odcsim.support.command import rare
from odcsim.support.numbers import SIZES, TOKENS, amount, human, whole

if TYPE_CHECKING:
    from odcsim.support.values import Given

MOST = 10**12 - 1  # of any whole number
DATA, MACHINES, BATCH, STEP, ROWS = "data", "model and GPUs", "batch", "how a step runs", "output"  # groups of the help


@dataclass(frozen=True, slots=True)
class Option:
    """What it may hold, and how it is asked for. `usual` None: whatever follows from the rest."""

    type: type
    expected: str = ""
    least: float = 0.0
    most: float = math.inf
    units: Mapping[str, int] = field(default_factory=dict)  # of its numbers; without any they are as Python has them
    values: tuple[str, ...] = ()  # of a text; none: any
    also: Mapping[str | bool, str] = field(default_factory=dict)  # other names of values, the texts in flags, too
    beside: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)  # other flags, with what they stand for
    name: str = ""
    group: str = ""
    usual: Any = None
    help: str = ""
    letter: str = ""  # that stands for the value in help
    example: str = ""  # what to give instead of a value that is refused
    lengths: bool = False  # it says how lengths are read
    file: bool = False  # it may name a file
    brief: bool = False  # the short help tells of it
    hidden: bool = False  # no command line asks for it
    control: str = ""  # what the explorer calls it, which has a control for it
    stops: tuple[Any, ...] = ()  # of a slider, or of a list where they are texts
    # Of a recipe:
    # What follows a model's name where the value is not the usual one, with {} for the value; or by value.
    words: str | Mapping[str, str] = ""
    compared: bool = False  # a comparison tries every value; who runs but one has to say which
    engine: bool = False  # the engine's alone: predictions do not know it
    predicted: bool = False  # predictions' alone: the engine does not run it
    searched: bool = False  # an advice chooses it
    estimated: bool = False  # estimates know it; seconds that were measured hold what was chosen when they were
    measured: tuple[str, ...] = ()  # values of it that measured seconds know, too

    @property
    def flag(self) -> str:
        """How a command line asks for another value than the usual one."""
        return flag(f"no_{self.name}" if self.usual is True else self.name)

    def add_flag(self, parser: Any, default: Any = None, *, required: bool = False) -> None:
        """`default`: what the command takes where nobody says. In a parser, or in one of its groups."""
        how: dict[str, Any] = {"dest": self.name, "default": default}
        if self.type is bool:
            how |= {"action": "store_false" if self.usual is True else "store_true", "help": self.help}
        else:
            how |= {"type": self.from_text if self.units or self.type is str else self.type, "required": required}
            how |= {"choices": self.values or None, "metavar": self.letter or None}
            how |= {"help": self.help if default in (None, "") else f"{self.help} ({default})"}
        parser.add_argument(self.flag, **how).rare = not (self.brief or required)
        for other, stands in self.beside.items():
            how = {"dest": self.name, "action": "store_const", "const": stands, "help": f"{self.flag} {stands}"}
            if isinstance(stands, Mapping):
                how = {"dest": self.name, "type": lambda text, of=stands: of.get(text, text)}
                how |= {"choices": tuple(stands.values()), "metavar": f"{{{','.join(stands)}}}"}
                how |= {"help": f"{self.flag} {', or '.join(one for one, of in stands.items() if one == of)}"}
            rare(parser.add_argument(other, **how))

    def argv(self, value: Any) -> list[str]:
        """How a command line says this value, which is not the usual one where it is true or false."""
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return [self.flag] if self.type is bool else [self.flag, text]

    def phrase(self, value: Any) -> str:
        """The value in words."""
        return self.words.format(value) if isinstance(self.words, str) else self.words.get(value, "")

    def from_text(self, text: str) -> Any:
        """On a command line. Numbers are written as people do: 16k, 5%."""
        if self.type not in (int, float):
            return self.also.get(text, text)
        if self.type is int and self.least == 1:
            return whole(text, self.units)  # which says what to write
        value: Any = human(text, self.units) if self.type is int else amount(text, self.units)
        if self.type is int:
            value = int(value) if value is not None and value.denominator == 1 else -1
        if not self.holds(value):
            raise argparse.ArgumentTypeError(f"'{text}' is not {self.expected}")
        return value

    def from_file(self, given: "Given") -> Any:
        """In a file, where numbers may be written as on a command line."""
        if self.type is bool:
            return given.flag()
        if self.values:
            other = isinstance(given.value, str | bool) and given.value in self.also
            return self.also[given.value] if other else given.one_of(self.values)
        if self.type is str:
            return given.text() if given.text().strip() else given.refuse(f"expected {self.expected}")
        if self.units and isinstance(given.value, str):
            return self.from_python(given.value, given.name, given.where)
        value = given.whole(int(self.least), self.most) if self.type is int else float(given.number())
        return value if self.holds(value) else given.refuse(f"expected {self.expected}")

    def from_python(self, value: Any, name: str = "", where: str = "") -> Any:
        """A number may be written as on a command line, and a path is text where a file may be named. Whole numbers of
        numpy are plain ones, which JSON knows."""
        if self.file and isinstance(value, os.PathLike):
            return os.fspath(value)
        if self.units and hasattr(value, "__index__") and not isinstance(value, bool):
            with suppress(TypeError):  # several numbers are none
                return operator.index(value)
        if not isinstance(value, str) or not self.units:
            return value
        try:
            return self.from_text(value)
        except argparse.ArgumentTypeError as error:
            raise InputError(f"{name or flag(self.name)}: {error}", where=where) from None

    def holds(self, value: Any) -> bool:
        if self.type in (bool, str):
            return isinstance(value, self.type) and (not self.values or value in self.values)
        number = isinstance(value, Hashable) and hasattr(value, "__index__") if self.units else type(value) is int
        number = number or (self.type is float and isinstance(value, float))
        return number and not isinstance(value, bool) and self.least <= value <= self.most and value < math.inf

    def refuse(self, name: str, value: Any, fix: str = "") -> None:
        """Whatever it may not hold, under this name."""
        if self.holds(value):
            return
        if self.values and isinstance(value, str):
            raise InputError(f"unknown {name} '{value}'", fix=nearest(value, list(self.values)))
        if self.expected and self.type is int and (isinstance(value, bool) or not hasattr(value, "__index__")):
            fix = fix or f"give {self.expected}"
        fix = fix or self.example or self.expected or f"give a value such as {self.usual!r}"
        raise InputError(f"{name} is {value!r:.40}", fix=fix)

    def check(self, name: str, value: Any, fix: str = "") -> Any:
        """The value of a function's own argument, which is called so."""
        value = self.from_python(value, flag(name))
        self.refuse(flag(name), value, fix or f"give {self.expected}")
        return value


TEXT = Option(str, "a name or a file")
COUNT = Option(int, "a whole number from 1", 1, MOST, SIZES)
FROM_ZERO = Option(int, "a whole number from 0", 0, MOST, SIZES)
LENGTH = Option(int, "a whole number from 1", 1, MOST, TOKENS)
LIMIT = Option(int, "a whole number from 0", 0, MOST, TOKENS)
AMOUNT = Option(float, "a number from 0", units=SIZES)
POSITIVE = Option(float, "a number above 0", math.nextafter(0, 1), units=SIZES)
FLAG = Option(bool, "true or false")


def option(kind: Option, group: str, usual: Any = None, **facts: Any) -> Any:
    """A field of a dataclass that is an option of this kind."""
    return field(default=usual, metadata={"option": replace(kind, group=group, usual=usual, **facts)})


def options_of(every: Iterable[Field[Any]]) -> dict[str, Option]:
    """Those among the fields of a dataclass, by name, in their order."""
    options = {one.name: one.metadata["option"] for one in every if "option" in one.metadata}
    return {name: replace(one, name=name) for name, one in options.items()}


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def values_of(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """What a command line says of these, where it says anything."""
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}
