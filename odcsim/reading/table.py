"""What every file format offers: columns by name, and where a row stands in the file. What JSON, NPY, NPZ, Parquet and
Arrow files become: columns that are fetched by name, some rows at a time."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.faults import MISSING, Check, wrong
from odcsim.reading.fields import count_tokens, is_list, pick
from odcsim.support import budget
from odcsim.trace import MAX_LENGTH

Columns = dict[str, NDArray[np.float64]]
Piece = Mapping[str, Any]
EXACT = 2.0**53  # beyond it a float64 no longer holds every whole number
PIECE = 1 << 18  # rows of numbers


class Table(Protocol):
    """An opened file. Numbers come as float64, so that fractions, NaN and infinity reach the checks."""

    @property
    def names(self) -> list[str]: ...

    @property
    def lists(self) -> frozenset[str]:
        """Columns of a list of tokens for each sample, whose numbers are how many of them count."""

    @property
    def later(self) -> Collection[str]:
        """Columns that the first row does not have, and some row that was read has."""

    def pieces(self, wanted: tuple[str, ...]) -> Iterator[Columns]:
        """The rows of these columns, some at a time."""

    def values(self, name: str) -> Iterator[object]:
        """What a column's rows hold, as it was given."""

    def labels(self, name: str, good: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Of the rows that are good, or of all."""

    def fault(self, name: str, row: int) -> tuple[str, str]:
        """What is wrong with a value that came as NaN, and the way out."""

    def place(self, row: int) -> str: ...


def numbers(table: Table, wanted: tuple[str, ...], where: str) -> Columns:
    """All rows of them at once, of a table that is small by nature."""
    pieces, rows = [], 0
    for piece in table.pieces(wanted):
        pieces.append(piece)
        if (rows := rows + len(piece[wanted[0]])) > budget.rows():
            raise budget.too_much(f"more than {budget.rows():,} rows", where)
    return {name: np.concatenate([np.zeros(0), *(piece[name] for piece in pieces)]) for name in wanted}


def check_whole(
    table: Table, name: str, values: NDArray[np.float64], *, least: int, most: float, start: int = 0
) -> Check:
    """That the values of the rows from `start` are whole numbers in [least, most]."""

    def explain(row: int) -> tuple[str, str]:
        if np.isnan(values[row]):
            return table.fault(name, start + row)
        return f"column '{name}' holds {values[row]:.15g}", f"it takes whole numbers from {least} to {most:.0f}"

    return Check(~((values >= least) & (values <= most)) | (values != np.floor(values)), explain)


def add_parts(
    table: Table, parts: tuple[str, ...], columns: Columns, start: int = 0
) -> tuple[NDArray[np.float64], list[Check]]:
    """One column of lengths, or prompt and response summed; either of the two may be empty, their sum may not."""
    least = 1 if len(parts) == 1 else 0
    checks = [check_whole(table, name, columns[name], least=least, most=MAX_LENGTH, start=start) for name in parts]
    if len(parts) == 1:
        return columns[parts[0]], checks
    total = np.sum([columns[name] for name in parts], axis=0)
    return total, [*checks, check_whole(table, " + ".join(parts), total, least=1, most=MAX_LENGTH, start=start)]


def labels(values: Iterable[object], where: str, *, texts: bool = False) -> NDArray[np.int64]:
    """Whole numbers as they are where all labels are such, else counted in the order in which labels first appear.

    `texts`: a text that says a whole number is one.
    """
    numbers: dict[object, int] = {}
    most, rest = budget.rows(), iter(values)
    plain = (value if type(value) is int or type(value) is str else str(value) for value in islice(rest, most))
    codes = np.fromiter((numbers.setdefault(value, len(numbers)) for value in plain), np.int64)
    if next(rest, None) is not None:
        raise budget.too_much(f"more than {most:,} rows, each with a step or group", where)
    try:
        if not texts and any(type(label) is not int for label in numbers):
            raise ValueError
        return np.array([int(str(label)) for label in numbers], np.int64)[codes]
    except (ValueError, OverflowError):
        same: dict[str, int] = {}
        return np.array([same.setdefault(str(label), len(same)) for label in numbers], np.int64)[codes]


def whole_labels(pieces: Iterable[Any], where: Path) -> NDArray[np.int64] | None:
    """Labels that come as arrays of whole numbers; None where some are not."""
    ids, rows = [np.zeros(0, np.int64)], 0
    for values in pieces:
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
            return None
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(np.float64)  # float16 does not reach what float64 holds exactly
            if not ((np.abs(values) < EXACT) & (values == np.floor(values))).all():
                return None
        if (rows := rows + len(values)) > budget.rows():
            raise budget.too_much(f"more than {budget.rows():,} rows, each with a step or group", where)
        ids.append(values.astype(np.int64))
    return np.concatenate(ids)


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
            columns = {}
            for name in wanted:
                values = piece[name]
                if not isinstance(values, np.ndarray):
                    columns[name] = np.array([number(value, name) for value in values], np.float64)
                elif values.ndim == 1 and values.dtype.kind in "iuf":
                    columns[name] = values.astype(np.float64)
                else:
                    problem = f"column '{name}' is a {values.ndim}-D array of {values.dtype}"
                    raise InputError(problem, where=str(self.path), fix="give one number per sample")
            yield columns

    def values(self, name: str) -> Iterator[object]:
        pieces = (piece[name] for piece in self.read((name,)))
        return chain.from_iterable(each.tolist() if isinstance(each, np.ndarray) else each for each in pieces)

    def labels(self, name: str, good: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        ids = whole_labels((piece[name] for piece in self.read((name,))), self.path)
        if ids is None:
            return labels(self.values(name) if good is None else compress(self.values(name), good), str(self.path))
        return ids if good is None else ids[good]

    def fault(self, name: str, row: int) -> tuple[str, str]:
        return wrong(name, next(islice(self.values(name), row, None)))

    def place(self, row: int) -> str:
        return f"{self.path}, row {row + 1}"


def of_columns(path: Path, columns: Mapping[str, Any]) -> MemoryTable:
    """A table of columns that are all there. What is no list (a note beside them) is no column."""
    lists = {name: values for name, values in columns.items() if isinstance(values, list)}
    check_sizes(path, {name: len(v) for name, v in lists.items()})
    of_tokens = frozenset(name for name, v in lists.items() if v and is_list(v[0]))

    def column(name: str) -> list[Any]:
        if name in lists:
            return lists[name]
        top, _, rest = name.partition(".")  # a field inside a column's objects
        return [pick(value if isinstance(value, dict) else {}, rest, MISSING) for value in lists[top]]

    def read(wanted: tuple[str, ...]) -> Iterator[Piece]:
        every = {name: column(name) for name in wanted}
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


def number(value: object, column: str) -> float:
    """One value of a JSON file as a float, of a list of tokens how many count; NaN of anything else, as of true."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    if is_list(value):
        return float(count_tokens(column, cast(list[int], value)))
    return math.nan
