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
from odcsim.reading.table import Columns, Table, factorised, ids
from odcsim.reading.text import opened

FIX = 'give one number, or one object such as {"length": 512}, per row'


@dataclass(frozen=True, slots=True)
class LinesTable:
    """JSONL, read line by line for the columns in use, so that long texts beside them cost no memory."""

    path: Path
    names: list[str]

    def numbers(self, wanted: tuple[str, ...]) -> Columns:
        kept = [array("d") for _ in wanted]
        for line, row in self._records():
            for values, name in zip(kept, wanted, strict=True):
                values.append(number(row[name], name, f"{self.path}:{line}"))
        return {name: np.array(values, np.float64) for name, values in zip(wanted, kept, strict=True)}

    def labels(self, name: str) -> NDArray[np.int64]:
        found = [row[name] for _, row in self._records()]
        return np.array(found, np.int64) if ids(found) else factorised(str(value) for value in found)

    def place(self, row: int) -> str:
        line = next((line for i, (line, _) in enumerate(self._records()) if i == row), row + 1)
        return f"{self.path}:{line}"

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, row in _lines(self.path):
            record = as_record(row)
            missing = next((name for name in self.names if name not in record), None)
            if missing is not None:
                raise InputError(f"has no '{missing}'", where=f"{self.path}:{line}", fix="give every row the same keys")
            yield line, record


def open_jsonl(path: Path) -> LinesTable:
    for _, row in _lines(path):
        return LinesTable(path, list(as_record(row)))
    raise InputError("the file is empty", where=str(path), fix=FIX)


def open_json(path: Path) -> Table:
    with opened(path) as file:
        value = parsed(file.read(), str(path))
    if isinstance(value, dict):
        return of_columns(path, value)
    if not isinstance(value, list) or not value:
        told = "nothing" if value in ([], None) else type(value).__name__
        raise InputError(f"the file holds {told} where lengths belong", where=str(path), fix=FIX)
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


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise InputError(f"is not valid JSON ({reason})", where=where, fix="check that the file is whole") from None


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with opened(path) as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                yield line, parsed(text, f"{path}:{line}")
