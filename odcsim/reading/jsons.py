"""JSON and JSONL: rows as objects or bare numbers; JSON also as one object of columns."""

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.csvs import open_utf8
from odcsim.reading.faults import MISSING, wrong
from odcsim.reading.fields import is_inside, is_list, pick
from odcsim.reading.table import PIECE, Columns, Table, labels, number, of_columns
from odcsim.support import budget
from odcsim.support.inputs import JsonStream

FIX = 'give one number, or one object such as {"length": 512}, per row'


@dataclass(frozen=True, slots=True)
class RowsTable:
    """Rows of JSON, read one after the other for the columns in use, so that long texts beside them cost no memory.

    Each comes with its number, and `where` says where that is in the file.
    """

    path: Path
    names: list[str]
    lists: frozenset[str]
    rows: Callable[[], Iterator[tuple[int, Any]]]
    where: str
    later: set[str] = field(default_factory=set)

    def pieces(self, wanted: tuple[str, ...]) -> Iterator[Columns]:
        rows = self._values(wanted)
        while True:
            numbers = array("d")
            for _, values in islice(rows, PIECE):
                try:
                    numbers.extend([_plain(value) for value in values])
                except (TypeError, OverflowError):
                    numbers.extend([number(value, name) for value, name in zip(values, wanted, strict=True)])
            if not numbers:
                return
            table = np.array(numbers, np.float64).reshape(-1, len(wanted))
            yield {name: table[:, i] for i, name in enumerate(wanted)}

    def values(self, name: str) -> Iterator[object]:
        return (values[0] for _, values in self._values((name,)))

    def labels(self, name: str, good: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        rows = self._values((name,))

        def present() -> Iterator[object]:
            for at, (value,) in rows if good is None else compress(rows, good):
                if value is MISSING or isinstance(value, InputError):
                    problem, fix = wrong(name, value)
                    raise InputError(problem, where=self.where.format(self.path, at), fix=fix)
                yield value

        return labels(present(), str(self.path))

    def fault(self, name: str, row: int) -> tuple[str, str]:
        return wrong(name, next(islice(self.values(name), row, None)))

    def place(self, row: int) -> str:
        at = next((number for number, _ in islice(self.rows(), row, None)), row + 1)
        return self.where.format(self.path, at)

    def _values(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, list[Any]]]:
        inside, known = any(is_inside(name, self.names) for name in wanted), set(self.names)
        for at, row in self.rows():
            if isinstance(row, InputError):
                yield at, [row] * len(wanted)
                continue
            record = as_record(row)
            if not record.keys() <= known:
                self.later.update(record.keys() - known)
            yield at, [pick(record, name, MISSING) if inside else record.get(name, MISSING) for name in wanted]


def open_jsonl(path: Path) -> Table:
    return _table(path, partial(_lines, path), "{}:{}", "the file is empty")


def open_json(path: Path) -> Table:
    """An array is rows, and an object is columns."""
    nothing = "the file holds nothing where lengths belong"
    with open_utf8(path) as file:
        first = JsonStream(file, str(path)).peek()
    if first == "[":
        return _table(path, partial(items, path), "{}, row {}", nothing)
    content = content_of(path)
    if isinstance(content, dict):
        return of_columns(path, content)
    problem = nothing if content is None else f"the file holds {type(content).__name__} where lengths belong"
    raise InputError(problem, where=str(path), fix=FIX)


def _table(path: Path, rows: Callable[[], Iterator[tuple[int, Any]]], where: str, empty: str) -> Table:
    for _, row in rows():
        if isinstance(row, InputError):
            raise row
        record = as_record(row)
        lists = frozenset(name for name, value in record.items() if is_list(value))
        return RowsTable(path, list(record), lists, rows, where)
    raise InputError(empty, where=str(path), fix=FIX)


def items(path: Path) -> Iterator[tuple[int, Any]]:
    """What is in the array of a JSON file, numbered from 1."""
    with open_utf8(path) as file:
        text = JsonStream(file, str(path))
        yield from enumerate(chain.from_iterable(text.array()), 1)
        text.end()


def content_of(path: Path) -> Any:
    """All that is in a JSON file."""
    budget.check(budget.PARSED * path.stat().st_size, "JSON that is no list", path)
    with open_utf8(path) as file:
        return parse(file.read(), str(path))


def as_record(row: Any) -> dict[str, Any]:
    """A bare value is a length; whether it is a number is checked with its place later."""
    return row if isinstance(row, dict) else {"length": row}


def _plain(value: Any) -> float:
    """The quick answer for what nearly every value is; `number` tells what is wrong with the rest."""
    if type(value) is int or type(value) is float:
        return float(value)
    raise TypeError


def parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(error, where) from None


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their lines; an error in place of one that is no JSON."""
    loads = json.loads  # this loop runs millions of times: no call and no text but what a line needs
    with open_utf8(path) as file:
        for line, text in enumerate(file, 1):
            if not text.isspace():
                try:
                    row = loads(text)
                except (ValueError, RecursionError) as error:
                    row = _invalid(error, f"{path}:{line}")
                yield line, row


def _invalid(error: Exception, where: str) -> InputError:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
    return InputError(f"is not valid JSON ({reason})", where=where, fix="check that the file is whole")
