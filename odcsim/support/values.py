"""What somebody gave, read as what it is to be, or refused in one line with its name, place and way out.

One value of a file is a `Given`, and JSON files of ours are read into dataclasses. Rows of numbers, one for each sample
or device or a column of a file, become arrays.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike, NDArray

from odcsim.errors import InputError, nearest
from odcsim.support.inputs import read_text, reading
from odcsim.support.outputs import write_text

T = TypeVar("T")
LARGEST = 1e15  # of any number: beyond it they are rubbish in every unit, and an int may not even fit a float
WORDS = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}


@dataclass(frozen=True, slots=True)
class Given:
    """`name` is the key, or the way to it: `timings[0].kind`; empty for a file's whole content."""

    name: str
    value: Any
    where: str = ""

    def key(self, name: str, default: Any = None) -> "Given":
        """What an object holds there."""
        return Given(f"{self.name}.{name}" if self.name else name, self.mapping().get(name, default), self.where)

    def items(self) -> list["Given"]:
        return [Given(f"{self.name}[{i}]", value, self.where) for i, value in enumerate(self.values())]

    def number(self, least: float = 0.0, most: float = LARGEST) -> Any:
        """As it was given, whole or not."""
        if type(self.value) not in (int, float) or not least <= self.value <= most:
            self.refuse(f"expected a number from {least:g}{_upto(most)}")
        return self.value

    def whole(self, least: int = 1, most: float = LARGEST) -> int:
        if type(self.value) is not int or not least <= self.value <= most:
            self.refuse(f"expected a whole number from {least}{_upto(most)}")
        return self.value

    def wholes(self, least: int, most: float = LARGEST) -> tuple[int, ...]:
        values = self.values()
        for i, value in enumerate(values):
            if type(value) is not int or not least <= value <= most:  # asked twice, since there may be millions
                Given(f"{self.name}[{i}]", value, self.where).whole(least, most)
        return tuple(values)

    def text(self) -> str:
        return str(self._typed(str))

    def flag(self) -> bool:
        return bool(self._typed(bool))

    def values(self) -> list[Any]:
        values: list[Any] = self._typed(list)
        return values

    def mapping(self) -> dict[str, Any]:
        mapping: dict[str, Any] = self._typed(dict)
        return mapping

    def one_of(self, few: Collection[str]) -> str:
        """One of these texts."""
        if self.value not in tuple(few):
            self.refuse(f"one of {', '.join(few)}")
        return str(self.value)

    def _typed(self, kind: type) -> Any:
        return self.value if isinstance(self.value, kind) else self.refuse(f"expected {WORDS[kind]}")

    def refuse(self, fix: str) -> NoReturn:
        raise InputError(f"{self.name} is {shown(self.value)}", where=self.where, fix=fix)


def expect(given: Any, kind: type | tuple[type, ...], name: str, maker: str) -> None:
    """At the door of a function: what another one makes."""
    if not isinstance(given, kind):
        raise InputError(f"no {name}: {shown(given)}", fix=f"give one as {maker} makes it")


def shown(value: Any) -> str:
    """A value in an error's line: short, and no number of thousands of digits, which Python refuses to write."""
    if type(value) is int and abs(value) >= LARGEST:
        return "huge"
    try:
        return f"{value!r:.40}"
    except ValueError:  # such a number is inside
        return "huge"


def _upto(most: float) -> str:
    return f" to {most}" if most < LARGEST else ""


def whole_numbers(name: str, values: ArrayLike, low: int) -> NDArray[np.int64]:
    """One for each sample."""
    array = _row(name, values)
    if array.dtype.kind not in "iu" and array.size:
        raise InputError(f"{name}s of type {array.dtype}", fix="give whole numbers")
    refuse(name, array, array < low, "sample", f"give at least {low}")
    return array.astype(np.int64)


def numbers(name: str, values: ArrayLike, count: int, owner: str = "sample") -> NDArray[np.float64]:
    """One for each owner. Weights start at 0, speeds above it."""
    array = _row(name, values, np.float64)
    as_many(name, len(array), count, owner)
    low = np.nextafter(0, 1) if owner == "device" else 0.0
    refuse(name, array, ~((array >= low) & (array < np.inf)), owner, "give a positive number")
    return array


def as_many(name: str, given: int, count: int, owner: str) -> None:
    if given != count:
        raise InputError(f"{given} {name}s for {count} {owner}s", fix=f"give one for each {owner}")


def refuse(name: str, values: NDArray[Any], bad: NDArray[np.bool_], owner: str, fix: str) -> None:
    """Refuse the first of those that are bad, if any is."""
    if bad.any():
        first = int(bad.argmax())
        raise InputError(f"{name} {values[first]}", where=f"{owner} {first}", fix=fix)


def column(columns: Mapping[str, Any], name: str, kind: str, fix: str) -> Any:
    """A column of whole numbers (kind `i`) or of times (kind `f`)."""
    array = columns[name]
    if array.dtype.kind != kind:
        raise InputError(f"column {name} holds {array.dtype}", fix=fix)
    return array.astype(np.int64 if kind == "i" else np.float64, copy=False)


def _row(name: str, values: ArrayLike, dtype: type | None = None) -> NDArray[Any]:
    try:
        array = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}s are no numbers ({error})", fix="give a row of numbers") from None
    if array.ndim != 1:
        raise InputError(f"{name}s in {array.ndim} dimensions", fix="give a row of numbers")
    return array


def write_json(content: Any, path: Path | str, form: str, version: int) -> None:
    text = json.dumps({"format": form, "version": version, **asdict(content)}, indent=1)
    write_text(Path(path), text + "\n")


def read_json(shape: type[T], path: Path | str, what: str, form: str, version: int) -> T:
    """The dataclass `shape` of the JSON file at `path`, which is to be `what`."""
    where = str(path)
    with reading(path, missing=f"give the path of {what}", expected=f"{what} in JSON"):
        content = json.loads(read_text(path))
    if not isinstance(content, dict) or content.pop("format", None) != form:
        raise InputError(f"not {what}", where=where, fix=f'expected a JSON object with "format": "{form}"')
    if (other := content.pop("version", None)) != version:
        raise InputError(f"version {shown(other)} is not {version}", where=where, fix=f"make {what} again")
    return build(shape, Given("", content, where))


def build(shape: type[T], given: Given) -> T:
    """The dataclass `shape`, of an object that has its fields as keys: a value that it would not take is named.

    Whole numbers start at their default, or at 1 where they have none; all others at 0. A text that may only be one
    of a few is Annotated with them.
    """
    known = {f.name: f for f in fields(shape)}  # type: ignore[arg-type]
    content = given.mapping()
    within, fix = f" in {given.name}" if given.name else "", f"known: {', '.join(known)}"
    if odd := sorted(set(content) - set(known)):
        like = nearest(odd[0][:40], list(known))
        raise InputError(f"unknown key {odd[0]!r:.40}{within}", where=given.where, fix=like)
    needed = (f.name for f in known.values() if f.default is MISSING)
    if missing := [name for name in needed if name not in content]:
        raise InputError(f"no {', '.join(missing)}{within}", where=given.where, fix=fix)
    return shape(**{name: _value(known[name].type, known[name].default, given.key(name)) for name in content})


def _value(kind: Any, default: Any, given: Given) -> Any:
    if is_dataclass(kind):
        return build(kind, given)  # type: ignore[arg-type]
    if kind is int:
        return given.whole(1 if default is MISSING else default)
    if kind is float:
        return float(given.number())
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], MISSING, item) for item in given.items())
    if get_origin(kind) is Annotated:
        return given.value if given.value == default else given.one_of(get_args(kind)[1])
    return given.flag() if kind is bool else given.text()
