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
from odcsim.reading.table import Columns, are_ids, texts_as_ids

BLOCK = 1 << 22


@dataclass(frozen=True)
class TextTable:
    """A delimited text file; a file without a header gets `length`, or the columns' numbers as names."""

    path: Path
    delimiter: str
    names: list[str]
    header_lines: int
    lists: frozenset[str] = frozenset()

    def numbers(self, wanted: tuple[str, ...]) -> Columns:
        at = [self.names.index(name) for name in wanted]
        bulk = self._bulk(at)
        table = self._exact(at) if bulk is None else bulk
        return {name: table[:, i] for i, name in enumerate(wanted)}

    def labels(self, name: str) -> NDArray[np.int64]:
        at = self.names.index(name)
        bulk = self._bulk([at])
        if bulk is not None and are_ids(bulk[:, 0]):
            return bulk[:, 0].astype(np.int64)
        return texts_as_ids(fields[at].strip() for _, fields in self._records())

    def place(self, row: int) -> str:
        line = next((line for i, (line, _) in enumerate(self._records()) if i == row), row + 1)
        return f"{self.path}:{line}"

    def _bulk(self, at: list[int]) -> NDArray[np.float64] | None:
        """The columns in one go, or None where a field is not a number or a row may be ragged."""
        every = sorted(at) == list(range(len(self.names)))  # then numpy itself finds ragged rows
        if not (every or self._even):
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy warns of a file without rows: told below as an error
                table = np.loadtxt(
                    str(self.path.absolute()), delimiter=self.delimiter, skiprows=self.header_lines, ndmin=2,
                    comments=None, quotechar='"', encoding="utf-8-sig", usecols=None if every else at,
                )  # fmt: skip
        except (ValueError, OSError):
            return None
        if table.shape[1] != len(at) or not len(table):
            return None
        return table[:, at] if every else table

    @cached_property
    def _even(self) -> bool:
        """Whether plain counting shows the same fields on every line; quotes and blank lines are left to csv."""
        seen = False
        with self.path.open("rb") as file:
            for _ in range(self.header_lines):
                file.readline()
            while block := file.read(BLOCK) + file.readline():
                characters = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
                upto = np.cumsum(characters == ord(self.delimiter), dtype=np.int32)[characters == ord("\n")]
                if b'"' in block or (np.diff(upto, prepend=0) != len(self.names) - 1).any():
                    return False
                seen = True
        return seen

    def _exact(self, at: list[int]) -> NDArray[np.float64]:
        kept = array("d")
        for line, fields in self._records():
            try:
                kept.extend([float(fields[column]) for column in at])
            except ValueError:
                raise self._not_a_number(fields, at, line) from None
        return np.array(kept, np.float64).reshape(-1, len(at))

    def _not_a_number(self, fields: list[str], at: list[int], line: int) -> InputError:
        column = next(column for column in at if not _is_number(fields[column]))
        problem = f"column '{self.names[column]}' holds {_short(fields[column])}"
        return InputError(problem, where=f"{self.path}:{line}", fix="it takes whole numbers")

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
