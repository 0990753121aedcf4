"""Columns that are fetched by name, some rows at a time: what JSON, NPY, NPZ, Parquet and Arrow files become."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading import tokens
from odcsim.reading.nested import picked
from odcsim.reading.table import Columns, are_ids, labels
from odcsim.support import budget

PIECE = 1 << 18  # rows of numbers
MISSING = object()  # where a row has no such key
Piece = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """`read` gives some columns piece by piece, each an array of numbers or any values in a row; a column that nobody
    wants is never loaded."""

    path: Path
    names: list[str]
    read: Callable[[tuple[str, ...]], Iterator[Piece]]
    lists: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()

    def pieces(self, wanted: tuple[str, ...]) -> Iterator[Columns]:
        for piece in self.read(wanted):
            yield {name: self._number(name, piece[name]) for name in wanted}

    def values(self, name: str) -> Iterator[object]:
        pieces = (piece[name] for piece in self.read((name,)))
        return chain.from_iterable(each.tolist() if isinstance(each, np.ndarray) else each for each in pieces)

    def labels(self, name: str, good: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        whole = self._whole_numbers(name)
        if whole is None:
            return labels(self.values(name) if good is None else compress(self.values(name), good), str(self.path))
        return whole if good is None else whole[good]

    def fault(self, name: str, row: int) -> tuple[str, str]:
        return wrong(name, next(islice(self.values(name), row, None)))

    def place(self, row: int) -> str:
        return f"{self.path}, row {row + 1}"

    def _whole_numbers(self, name: str) -> NDArray[np.int64] | None:
        """Labels that are arrays of such; None where some are not."""
        pieces, rows = [np.zeros(0, np.int64)], 0
        for piece in self.read((name,)):
            values = piece[name]
            if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
                return None
            if values.dtype.kind == "f" and not are_ids(values):
                return None
            if (rows := rows + len(values)) > budget.rows():
                raise budget.too_much(f"more than {budget.rows():,} rows, each with a step or group", self.path)
            pieces.append(values.astype(np.int64))
        return np.concatenate(pieces)

    def _number(self, name: str, values: Any) -> NDArray[np.float64]:
        if isinstance(values, np.ndarray):
            if values.ndim == 1 and values.dtype.kind in "iuf":
                return values.astype(np.float64)
            kind = f"a {values.ndim}-D array of {values.dtype}"
            raise InputError(f"column '{name}' is {kind}", where=str(self.path), fix="give one number per sample")
        return np.array([number(value, name) for value in values], np.float64)


def of_columns(path: Path, columns: Mapping[str, Any]) -> MemoryTable:
    """A table of columns that are all there. What is no list (a note beside them) is no column."""
    lists = {name: values for name, values in columns.items() if isinstance(values, list)}
    check_sizes(path, {name: len(v) for name, v in lists.items()})
    of_tokens = frozenset(name for name, v in lists.items() if v and tokens.is_list(v[0]))

    def read(wanted: tuple[str, ...]) -> Iterator[Piece]:
        every = {name: _column(lists, name) for name in wanted}
        for start in range(0, len(every[wanted[0]]), PIECE):
            yield {name: values[start : start + PIECE] for name, values in every.items()}

    return MemoryTable(path, list(lists), read, of_tokens)


def check_sizes(path: Path, sizes: Mapping[str, int]) -> None:
    """There are columns, of one length."""
    if not sizes:
        raise InputError("the file holds no columns", where=str(path), fix='give lists, such as {"length": [512]}')
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' {size}" for name, size in sizes.items())
        raise InputError(f"columns differ in length: {listed}", where=str(path), fix="give every row the same columns")


def _column(lists: Mapping[str, Any], name: str) -> Any:
    """A column, or a field inside one's objects."""
    if name in lists:
        return lists[name]
    top, _, rest = name.partition(".")
    return [there(value if isinstance(value, dict) else {}, rest) for value in lists[top]]


def there(record: Mapping[str, Any], name: str) -> Any:
    """What a row has under a name, if it has it."""
    try:
        return picked(record, name)
    except KeyError:
        return MISSING


def number(value: object, column: str) -> float:
    """One value of a JSON file as a float, of a list of tokens how many count; NaN of anything else, as of true."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    if tokens.is_list(value):
        return float(tokens.count(column, cast(list[int], value)))
    return math.nan


def wrong(column: str, value: object) -> tuple[str, str]:
    """What is said of a value that is no number, and the way out."""
    if isinstance(value, InputError):
        return value.problem, value.fix
    if value is MISSING:
        return f"has no '{column}'", "give every row the same keys"
    return f"column '{column}' holds {shown(value)}", "it takes whole numbers"


def shown(value: object) -> str:
    if isinstance(value, str | bytes):
        value = value[:100]
    text = f"{len(value):,} values" if isinstance(value, list | dict) and len(value) > 100 else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
