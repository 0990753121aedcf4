"""JSON and JSONL: rows as objects or bare numbers; JSON also as one object of columns."""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.memory import MemoryTable, number, of_columns
from odcsim.reading.nested import is_inside, picked
from odcsim.reading.table import Columns, Table, factorised, ids
from odcsim.reading.text import opened
from odcsim.reading.tokens import is_list

FIX = 'give one number, or one object such as {"length": 512}, per row'


@dataclass(frozen=True, slots=True)
class LinesTable:
    """JSONL, read line by line for the columns in use, so that long texts beside them cost no memory."""

    path: Path
    names: list[str]
    lists: frozenset[str]

    def numbers(self, wanted: tuple[str, ...]) -> Columns:
        kept = array("d")
        for line, values in self._values(wanted):
            try:
                kept.extend([_plain(value) for value in values])
            except (TypeError, OverflowError):
                kept.extend([number(v, name, f"{self.path}:{line}") for v, name in zip(values, wanted, strict=True)])
        table = np.array(kept, np.float64).reshape(-1, len(wanted))
        return {name: table[:, i] for i, name in enumerate(wanted)}

    def labels(self, name: str) -> NDArray[np.int64]:
        column = [values[0] for _, values in self._values((name,))]
        return np.array(column, np.int64) if ids(column) else factorised(str(value) for value in column)

    def place(self, row: int) -> str:
        line = next((line for i, (line, _) in enumerate(_lines(self.path)) if i == row), row + 1)
        return f"{self.path}:{line}"

    def _values(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, list[Any]]]:
        inside = any(is_inside(name, self.names) for name in wanted)
        for line, row in _lines(self.path):
            try:
                record = as_record(row)
                yield line, [picked(record, name) if inside else record[name] for name in wanted]
            except KeyError as error:
                problem = f"has no {error.args[0]!r}"
                raise InputError(problem, where=f"{self.path}:{line}", fix="give every row the same keys") from None


def open_jsonl(path: Path) -> LinesTable:
    for _, row in _lines(path):
        record = as_record(row)
        return LinesTable(path, list(record), frozenset(n for n, value in record.items() if is_list(value)))
    raise InputError("the file is empty", where=str(path), fix=FIX)


def open_json(path: Path) -> Table:
    with opened(path) as file:
        value = parsed(file.read(), str(path))
    if isinstance(value, dict):
        return of_columns(path, value)
    if not isinstance(value, list) or not value:
        kind = "nothing" if value in ([], None) else type(value).__name__
        raise InputError(f"the file holds {kind} where lengths belong", where=str(path), fix=FIX)
    return _rows(path, [as_record(row) for row in value])


def _rows(path: Path, records: list[dict[str, Any]]) -> MemoryTable:
    names = list(records[0])
    for i, record in enumerate(records, 1):
        missing = next((name for name in names if name not in record), None)
        if missing is not None:
            raise InputError(f"has no '{missing}'", where=f"{path}, row {i}", fix="give every row the same keys")
    return of_columns(path, {name: [record[name] for record in records] for name in names})


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
    loads = json.loads  # this loop runs millions of times: no call and no text but what a line needs
    with opened(path) as file:
        for line, text in enumerate(file, 1):
            if not text.isspace():
                try:
                    row = loads(text)
                except (ValueError, RecursionError) as error:
                    raise _invalid(error, f"{path}:{line}") from None
                yield line, row


def _invalid(error: Exception, where: str) -> InputError:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
    return InputError(f"is not valid JSON ({reason})", where=where, fix="check that the file is whole")
