"""CSV, TSV and one number per line: a bulk parse in numpy, and an exact reading that finds and names a bad line."""

import csv
import math
import warnings
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import compress, islice
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.table import PIECE, Columns, labels, whole_labels
from odcsim.support.inputs import check_lines
from odcsim.support.numbers import number

BLOCK = 1 << 22  # bytes


@dataclass(frozen=True)
class TextTable:
    """A delimited text file; a file without a header gets `length`, or the columns' numbers as names."""

    path: Path
    delimiter: str
    names: list[str]
    header_lines: int
    lists: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()

    def pieces(self, wanted: tuple[str, ...]) -> Iterator[Columns]:
        at, done = [self.names.index(name) for name in wanted], 0
        for table in self._bulk(at):
            if table is None:
                break
            done += len(table)
            yield {name: table[:, i] for i, name in enumerate(wanted)}
        else:
            return
        for table in self._exact(at, done):
            yield {name: table[:, i] for i, name in enumerate(wanted)}

    def values(self, name: str) -> Iterator[object]:
        at, width = self.names.index(name), len(self.names)
        return (fields[at].strip() if len(fields) == width else "" for _, fields in self._records())

    def labels(self, name: str, good: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        at = self.names.index(name)
        ids = whole_labels((table if table is None else table[:, 0] for table in self._bulk([at])), self.path)
        if ids is None:
            values = self.values(name) if good is None else compress(self.values(name), good)
            return labels(values, str(self.path), texts=True)
        return ids if good is None else ids[good]

    def place(self, row: int) -> str:
        return f"{self.path}:{self._record(row)[0]}"

    def fault(self, name: str, row: int) -> tuple[str, str]:
        fields, width = self._record(row)[1], len(self.names)
        same = "give every row the same columns"
        if not fields:
            return "is blank", same
        if len(fields) != width:
            return f"{len(fields)} fields where the first line has {width}", same
        text = fields[self.names.index(name)].strip()
        if text and not _is_number(text):
            text = repr(text if len(text) <= 40 else text[:37] + "...")
        return f"column '{name}' holds {text or 'nothing'}", "it takes whole numbers"

    def _record(self, row: int) -> tuple[int, list[str]]:
        return next(islice(self._records(), row, None), (row + 1, []))

    def _bulk(self, at: list[int]) -> Iterator[NDArray[np.float64] | None]:
        """The columns in great pieces, and None where a field is not a number or a row may be ragged."""
        every = sorted(at) == list(range(len(self.names)))  # then numpy itself finds ragged rows
        if not (every or self._even):
            yield None
            return
        with self.path.open("rb") as file:
            for _ in range(self.header_lines):
                file.readline()
            ended = False
            while block := file.read(BLOCK) + file.readline():
                table = self._parse(block, None if every else at)
                rows = text.count(b"\n") + 1 if (text := block.rstrip()) else 0
                if table is None or table.shape[1] != len(at) or len(table) != rows or (ended and rows):
                    yield None
                    return
                ended = ended or block.count(b"\n") > rows  # blank lines are rows if anything comes after them
                if rows:
                    yield table[:, at] if every else table

    def _parse(self, block: bytes, at: list[int] | None) -> NDArray[np.float64] | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy warns of nothing but blank lines
                return np.loadtxt(
                    StringIO(block.decode("utf-8-sig")), delimiter=self.delimiter, ndmin=2, comments=None,
                    quotechar='"', usecols=at,
                )  # fmt: skip
        except ValueError:
            return None

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

    def _exact(self, at: list[int], done: int) -> Iterator[NDArray[np.float64]]:
        records, width = islice(self._records(), done, None), len(self.names)
        while True:
            numbers = array("d")
            for _, fields in islice(records, PIECE):
                if len(fields) != width:
                    numbers.extend([math.nan] * len(at))
                    continue
                try:
                    numbers.extend([float(fields[column]) for column in at])
                except ValueError:
                    numbers.extend([_number(fields[column]) for column in at])
            if not numbers:
                return
            yield np.array(numbers, np.float64).reshape(-1, len(at))

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        with open_utf8(self.path) as file:
            yield from rows(file, self.path, self.delimiter, self.header_lines)


def open_text(path: Path) -> TextTable:
    """Look at the first line: what separates fields, and whether it is a header."""
    check_lines(path)
    with open_utf8(path) as file:
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
def open_utf8(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 text; bytes that are not, found anywhere while it is read, are an error naming the line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", where=_not_utf8(path), fix="save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path), fix="check the file") from None


def rows(file: TextIO, path: Path, delimiter: str, skip: int = 0) -> Iterator[tuple[int, list[str]]]:
    """The fields of each row, with its line. A blank line has none, and is no row where nothing comes after it."""
    for _ in range(skip):
        file.readline()
    reader = csv.reader(file, delimiter=delimiter)
    blank = range(0)
    try:
        for fields in reader:
            line = reader.line_num + skip
            if not fields or (len(fields) == 1 and fields[0].isspace()):
                blank = range(blank.start if blank else line, line + 1)
                continue
            yield from ((each, []) for each in blank)
            blank = range(0)
            yield line, fields
    except csv.Error as error:
        where = f"{path}:{reader.line_num + skip}"
        raise InputError(f"is not delimited text ({error})", where=where, fix="save it as CSV") from None


def _not_utf8(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return f"{path}:{number}"
    return str(path)


def _number(field: str) -> float:
    """NaN where it is none."""
    try:
        return number(field)
    except ValueError:
        return math.nan


def _is_number(field: str) -> bool:
    return not math.isnan(_number(field)) or field.strip().lower().lstrip("+-") == "nan"
