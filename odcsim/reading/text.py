"""CSV, TSV and one number per line: a bulk parse in numpy, and an exact reading that finds and names a bad line."""

import csv
import warnings
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.table import Columns, are_ids, factorised

MOST_BULK_COLUMNS = 8  # bulk parsing holds every column in memory, wanted or not


@dataclass(frozen=True)
class TextTable:
    """A delimited text file; a file without a header gets `length`, or the columns' numbers as names."""

    path: Path
    delimiter: str
    names: list[str]
    header_lines: int

    def numbers(self, wanted: tuple[str, ...]) -> Columns:
        if self._bulk is None:
            return self._exact(wanted)
        return {name: self._bulk[:, self.names.index(name)] for name in wanted}

    def labels(self, name: str) -> NDArray[np.int64]:
        at = self.names.index(name)
        if self._bulk is not None and are_ids(self._bulk[:, at]):
            return self._bulk[:, at].astype(np.int64)
        texts = [fields[at].strip() for _, fields in self._records()]
        try:
            return np.array([int(text) for text in texts], np.int64)
        except (ValueError, OverflowError):
            return factorised(texts)

    def place(self, row: int) -> str:
        line = next((line for i, (line, _) in enumerate(self._records()) if i == row), row + 1)
        return f"{self.path}:{line}"

    @cached_property
    def _bulk(self) -> NDArray[np.float64] | None:
        """Everything at once, or None where one field is not a number or a row is ragged."""
        if len(self.names) > MOST_BULK_COLUMNS:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy warns of a file without rows: told below as an error
                found = np.loadtxt(
                    str(self.path.absolute()), delimiter=self.delimiter, skiprows=self.header_lines, ndmin=2,
                    comments=None, quotechar='"', encoding="utf-8-sig",
                )  # fmt: skip
        except (ValueError, OSError):
            return None
        return found if found.shape[1] == len(self.names) and len(found) else None

    def _exact(self, wanted: tuple[str, ...]) -> Columns:
        at = [self.names.index(name) for name in wanted]
        kept = [array("d") for _ in wanted]
        for line, fields in self._records():
            for values, column in zip(kept, at, strict=True):
                values.append(self._number(fields[column], column, line))
        return {name: np.array(values, np.float64) for name, values in zip(wanted, kept, strict=True)}

    def _number(self, field: str, column: int, line: int) -> float:
        try:
            return float(field)
        except ValueError:
            raise InputError(
                f"column '{self.names[column]}' holds {_short(field)}",
                where=f"{self.path}:{line}",
                fix="it takes whole numbers",
            ) from None

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        with opened(self.path) as file:
            yield from _rows(file, self.path, self.delimiter, len(self.names), self.header_lines)


def open_text(path: Path) -> TextTable:
    """Look at the first line: what separates fields, and whether it is a header."""
    with opened(path) as file:
        first, lines = "", 0
        while not first.strip():
            if not (first := file.readline()):
                raise InputError("the file is empty", where=str(path), fix="give one length per line")
            lines += 1
    delimiter = next((d for d in ("\t", ",", ";") if d in first), ",")
    try:
        fields = [name.strip() for name in next(csv.reader([first], delimiter=delimiter))]
    except csv.Error as error:
        raise InputError(f"is not text ({error})", where=f"{path}:{lines}", fix="save it as CSV") from None
    if not all(_is_number(field) for field in fields):
        return TextTable(path, delimiter, fields, lines)
    names = ["length"] if len(fields) == 1 else [str(i + 1) for i in range(len(fields))]
    return TextTable(path, delimiter, names, 0)


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 text; bytes that are not, found anywhere while it is read, are an error naming the line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", where=_undecodable(path), fix="save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path), fix="check the file") from None


def _rows(file: TextIO, path: Path, delimiter: str, width: int, skip: int) -> Iterator[tuple[int, list[str]]]:
    for _ in range(skip):
        file.readline()
    reader = csv.reader(file, delimiter=delimiter)
    try:
        for fields in reader:
            line = reader.line_num + skip
            if len(fields) <= 1 and not "".join(fields).strip():
                continue
            if len(fields) != width:
                raise InputError(f"{len(fields)} fields where the first line has {width}", where=f"{path}:{line}",
                                 fix="give every row the same columns")  # fmt: skip
            yield line, fields
    except csv.Error as error:
        where = f"{path}:{reader.line_num + skip}"
        raise InputError(f"is not delimited text ({error})", where=where, fix="save it as CSV") from None


def _undecodable(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return f"{path}:{number}"
    return str(path)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _short(field: str) -> str:
    text = field.strip()
    return "nothing" if not text else repr(text if len(text) <= 40 else text[:37] + "...")
