"""JSON and JSONL: rows as objects or bare numbers; JSON also as one object of columns."""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.memory import MISSING, PIECE, number, of_columns, there, wrong
from odcsim.reading.nested import is_inside
from odcsim.reading.table import Columns, Table, labels
from odcsim.reading.text import opened
from odcsim.reading.tokens import is_list
from odcsim.support import budget
from odcsim.support.inputs import JsonStream

FIX = 'give one number, or one object such as {"length": 512}, per row'


@dataclass(frozen=True, slots=True)
class RowsTable:
    """Rows of JSON, read one after the other for the columns in use, so that long texts beside them cost no memory.

    Each comes with its number, and `said` says where that is.
    """

    path: Path
    names: list[str]
    lists: frozenset[str]
    rows: Callable[[], Iterator[tuple[int, Any]]]
    said: str
    later: set[str] = field(default_factory=set)

    def pieces(self, wanted: tuple[str, ...]) -> Iterator[Columns]:
        values = self._values(wanted)
        while kept := self._numbers(islice(values, PIECE), wanted):
            table = np.array(kept, np.float64).reshape(-1, len(wanted))
            yield {name: table[:, i] for i, name in enumerate(wanted)}

    def values(self, name: str) -> Iterator[object]:
        return (values[0] for _, values in self._values((name,)))

    def labels(self, name: str, good: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        rows = self._values((name,))
        return labels(self._present(name, rows if good is None else compress(rows, good)), str(self.path))

    def fault(self, name: str, row: int) -> tuple[str, str]:
        return wrong(name, next(islice(self.values(name), row, None)))

    def place(self, row: int) -> str:
        return self._at(next((number for number, _ in islice(self.rows(), row, None)), row + 1))

    def _at(self, number: int) -> str:
        return self.said.format(self.path, number)

    def _numbers(self, rows: Iterator[tuple[int, list[Any]]], wanted: tuple[str, ...]) -> "array[float]":
        kept = array("d")
        for _, values in rows:
            try:
                kept.extend([_plain(value) for value in values])
            except (TypeError, OverflowError):
                kept.extend([number(value, name) for value, name in zip(values, wanted, strict=True)])
        return kept

    def _present(self, name: str, rows: Iterable[tuple[int, list[Any]]]) -> Iterator[object]:
        for at, (value,) in rows:
            if value is MISSING or isinstance(value, InputError):
                problem, fix = wrong(name, value)
                raise InputError(problem, where=self._at(at), fix=fix)
            yield value

    def _values(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, list[Any]]]:
        inside, known = any(is_inside(name, self.names) for name in wanted), set(self.names)
        for at, row in self.rows():
            if isinstance(row, InputError):
                yield at, [row] * len(wanted)
                continue
            record = as_record(row)
            if not record.keys() <= known:
                self.later.update(record.keys() - known)
            yield at, [there(record, name) if inside else record.get(name, MISSING) for name in wanted]


def open_jsonl(path: Path) -> Table:
    return _table(path, partial(_lines, path), "{}:{}") or _refused(path, "the file is empty")


def open_json(path: Path) -> Table:
    """An array is rows, and an object is columns."""
    with opened(path) as file:
        first = JsonStream(file, str(path)).peek()
    if first == "[":
        found = _table(path, partial(items, path), "{}, row {}")
        return found or _refused(path, "the file holds nothing where lengths belong")
    content = content_of(path)
    if isinstance(content, dict):
        return of_columns(path, content)
    kind = "nothing" if content is None else type(content).__name__
    return _refused(path, f"the file holds {kind} where lengths belong")


def _table(path: Path, rows: Callable[[], Iterator[tuple[int, Any]]], said: str) -> Table | None:
    for _, row in rows():
        if isinstance(row, InputError):
            raise row
        record = as_record(row)
        lists = frozenset(name for name, value in record.items() if is_list(value))
        return RowsTable(path, list(record), lists, rows, said)
    return None


def _refused(path: Path, problem: str) -> NoReturn:
    raise InputError(problem, where=str(path), fix=FIX)


def items(path: Path) -> Iterator[tuple[int, Any]]:
    """What is in the array of a JSON file, numbered from 1."""
    with opened(path) as file:
        text = JsonStream(file, str(path))
        yield from enumerate(chain.from_iterable(text.array()), 1)
        text.end()


def content_of(path: Path) -> Any:
    """All that is in a JSON file."""
    budget.check(budget.PARSED * path.stat().st_size, "JSON that is no list", path)
    with opened(path) as file:
        return parsed(file.read(), str(path))


def as_record(row: Any) -> dict[str, Any]:
    """A bare value is a length; whether it is a number is checked with its place later."""
    return row if isinstance(row, dict) else {"length": row}


def _plain(value: Any) -> float:
    """The quick answer for what nearly every value is; `number` tells what is wrong with the rest."""
    if type(value) is int or type(value) is float:
        return float(value)
    raise TypeError


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(error, where) from None


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their lines; an error in place of one that is no JSON."""
    loads = json.loads  # this loop runs millions of times: no call and no text but what a line needs
    with opened(path) as file:
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
