"""What every file format offers: columns by name, and where a row stands in the file."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.bad import Check, sifted
from odcsim.support import budget
from odcsim.trace import MAX_LENGTH

Columns = dict[str, NDArray[np.float64]]
EXACT = 2.0**53  # beyond it a float64 no longer holds every whole number


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


def are_whole(
    table: Table, name: str, values: NDArray[np.float64], *, least: int, most: float, start: int = 0
) -> Check:
    """That the values of the rows from `start` are whole numbers in [least, most]."""
    wrong = ~((values >= least) & (values <= most))
    wrong |= values != np.floor(values)

    def told(row: int) -> tuple[str, str]:
        if np.isnan(values[row]):
            return table.fault(name, start + row)
        return f"column '{name}' holds {values[row]:.15g}", f"it takes whole numbers from {least} to {most:.0f}"

    return Check(wrong, told)


def summed(
    table: Table, parts: tuple[str, ...], columns: Columns, start: int = 0
) -> tuple[NDArray[np.float64], list[Check]]:
    """One column of lengths, or prompt and response summed; either of the two may be empty, their sum may not."""
    least = 1 if len(parts) == 1 else 0
    checks = [are_whole(table, name, columns[name], least=least, most=MAX_LENGTH, start=start) for name in parts]
    if len(parts) == 1:
        return columns[parts[0]], checks
    total = np.sum([columns[name] for name in parts], axis=0)
    return total, [*checks, are_whole(table, " + ".join(parts), total, least=1, most=MAX_LENGTH, start=start)]


def lengths_of(table: Table, parts: tuple[str, ...], columns: Columns) -> NDArray[np.int64]:
    """The same of a table in which no row may be bad."""
    total, checks = summed(table, parts, columns)
    for row, problem, fix in sifted(checks)[1]:
        raise InputError(problem, where=table.place(row), fix=fix)
    return total.astype(np.int64)


def are_ids(values: NDArray[np.floating[Any]]) -> bool:
    """Whether labels can be kept as the whole numbers they are."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float64)  # float16 does not reach what float64 holds exactly
    return bool(((np.abs(values) < EXACT) & (values == np.floor(values))).all())


def labels(values: Iterable[object], where: str, *, texts: bool = False) -> NDArray[np.int64]:
    """Whole numbers as they are where all labels are such, else counted in the order in which labels first appear.

    `texts`: a text that says a whole number is one.
    """
    seen: dict[object, int] = {}
    most = budget.rows()
    codes = np.fromiter((seen.setdefault(_plain(value), len(seen)) for value in _upto(most, values, where)), np.int64)
    try:
        return np.array([_id(label, texts) for label in seen], np.int64)[codes]
    except (ValueError, OverflowError):
        same: dict[str, int] = {}
        return np.array([same.setdefault(str(label), len(same)) for label in seen], np.int64)[codes]


def _upto(most: int, values: Iterable[object], where: str) -> Iterator[object]:
    yield from islice(rest := iter(values), most)
    if next(rest, None) is not None:
        raise budget.too_much(f"more than {most:,} rows, each with a step or group", where)


def _plain(value: object) -> object:
    return value if type(value) is int or type(value) is str else str(value)


def _id(label: object, texts: bool) -> int:
    if type(label) is int or texts:
        return int(str(label))
    raise ValueError
