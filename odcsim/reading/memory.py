"""Columns in memory: what JSON, NPY, NPZ and Parquet files become."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading import tokens
from odcsim.reading.nested import picked
from odcsim.reading.table import Columns, are_ids, factorised, ids

MOST_ROWS = 2**28


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Columns by name, as lists or arrays; `read` fetches one, so that a column nobody wants is never loaded."""

    path: Path
    names: list[str]
    read: Callable[[str], Any]
    lists: frozenset[str] = frozenset()

    def numbers(self, wanted: tuple[str, ...]) -> Columns:
        return {name: self._number(name) for name in wanted}

    def labels(self, name: str) -> NDArray[np.int64]:
        values = self.read(name)
        if isinstance(values, np.ndarray) and (values.dtype.kind in "iu" or (_is_float(values) and are_ids(values))):
            return values.astype(np.int64)
        listed = list(values)
        return np.array(listed, np.int64) if ids(listed) else factorised(str(value) for value in listed)

    def place(self, row: int) -> str:
        return f"{self.path}, row {row + 1}"

    def _number(self, name: str) -> NDArray[np.float64]:
        values = self.read(name)
        if isinstance(values, list):
            return np.array([number(v, name, self.place(i)) for i, v in enumerate(values)], np.float64)
        if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iuf":
            return values.astype(np.float64)
        kind = f"a {values.ndim}-D array of {values.dtype}" if isinstance(values, np.ndarray) else "not a list"
        raise InputError(f"column '{name}' is {kind}", where=str(self.path), fix="give one number per sample")


def of_columns(path: Path, columns: Mapping[str, Any]) -> MemoryTable:
    """A table of columns that are all there. What is no list (a note beside them) is no column."""
    lists = {name: values for name, values in columns.items() if isinstance(values, list | np.ndarray)}
    check_sizes(path, {name: len(v) if isinstance(v, list) or v.ndim else 0 for name, v in lists.items()})
    of_tokens = frozenset(name for name, v in lists.items() if isinstance(v, list) and v and tokens.is_list(v[0]))
    return MemoryTable(path, list(lists), lambda name: _column(lists, name, path), of_tokens)


def check_sizes(path: Path, sizes: Mapping[str, int]) -> None:
    """There are columns, of one length, that a machine's memory takes."""
    if not sizes:
        raise InputError("the file holds no columns", where=str(path), fix='give lists, such as {"length": [512]}')
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' {size}" for name, size in sizes.items())
        raise InputError(f"columns differ in length: {listed}", where=str(path), fix="give every row the same columns")
    if (rows := max(sizes.values())) > MOST_ROWS:
        raise InputError(f"holds {rows:,} rows", where=str(path), fix=f"give at most {MOST_ROWS:,}, or a count table")


def _column(lists: Mapping[str, Any], name: str, path: Path) -> Any:
    """A column, or a field inside one's objects."""
    if name in lists:
        return lists[name]
    top, _, rest = name.partition(".")
    values = []
    for row, value in enumerate(lists[top], 1):
        try:
            values.append(picked(value if isinstance(value, dict) else {}, rest))
        except KeyError:
            raise InputError(
                f"has no '{name}'", where=f"{path}, row {row}", fix="give every row the same keys"
            ) from None
    return values


def number(value: object, column: str, where: str) -> float:
    """One value of a JSON file as a float, of a list of tokens how many count; true and false are not numbers here."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    if tokens.is_list(value):
        return float(tokens.count(column, cast(list[int], value)))
    text = repr(value)
    shown = text if len(text) <= 40 else text[:37] + "..."
    raise InputError(f"column '{column}' holds {shown}", where=where, fix="it takes whole numbers")


def _is_float(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f"
