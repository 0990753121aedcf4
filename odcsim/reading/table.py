"""What every file format offers: columns by name, and where a row stands in the file."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
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

    def numbers(self, wanted: tuple[str, ...]) -> Columns: ...

    def labels(self, name: str) -> NDArray[np.int64]: ...

    def place(self, row: int) -> str: ...


def whole(table: Table, name: str, values: NDArray[np.float64], *, least: int, most: float) -> NDArray[np.int64]:
    """The values as whole numbers in [least, most]; the first that is not is an error naming its place."""
    wrong = ~((values >= least) & (values <= most))
    wrong |= values != np.floor(values)
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(
            f"column '{name}' holds {values[row]:.15g}",
            where=table.place(row),
            fix=f"it takes whole numbers from {least} to {most:.0f}",
        )
    return values.astype(np.int64)


def lengths_of(table: Table, parts: tuple[str, ...], columns: Columns) -> NDArray[np.int64]:
    """One column of lengths, or prompt and response summed; either of the two may be empty, their sum may not."""
    least = 1 if len(parts) == 1 else 0
    total = sum(whole(table, name, columns[name], least=least, most=MAX_LENGTH) for name in parts)
    return whole(table, " + ".join(parts), np.asarray(total, np.float64), least=1, most=MAX_LENGTH)


def are_ids(values: NDArray[np.float64]) -> bool:
    """Whether labels can be kept as the whole numbers they are."""
    return bool(((np.abs(values) < EXACT) & (values == np.floor(values))).all())


def factorised(values: Iterable[object]) -> NDArray[np.int64]:
    """Whole numbers in place of labels, counted in the order in which labels first appear."""
    return _coded(values)[0]


def texts_as_ids(texts: Iterable[str]) -> NDArray[np.int64]:
    """Labels read from text: kept where all are whole numbers that fit, else factorised."""
    codes, labels = _coded(texts)
    try:
        return np.array([int(str(label)) for label in labels], np.int64)[codes]
    except (ValueError, OverflowError):
        return codes


def ids(values: list[object]) -> bool:
    """Whether a list of labels holds nothing but whole numbers that fit."""
    return all(type(value) is int and abs(value) < 2**63 for value in values)


def _coded(values: Iterable[object]) -> tuple[NDArray[np.int64], list[object]]:
    seen: dict[object, int] = {}
    codes = np.fromiter((seen.setdefault(value, len(seen)) for value in values), np.int64)
    return codes, list(seen)
