"""Rows of files that may hold text, in order, with the columns that are asked for and nothing else."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading import csvs, jsons
from odcsim.reading.arrays import decode
from odcsim.reading.arrow import ROWS, STATE, batches, count_rows, records_of, saved_files
from odcsim.support.inputs import JsonStream

TABLES = (".parquet", ".arrow")
READABLE = (".jsonl", ".json", ".csv", ".tsv", *TABLES)

Record = dict[str, Any]
Chosen = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file, or a folder of save_to_disk, as rows."""

    path: Path

    @property
    def readable(self) -> bool:
        return self.path.is_dir() or self.path.suffix.lower() in READABLE

    @property
    def files(self) -> list[Path]:
        """What lies on disk: all of it decides what is counted."""
        return [self.path / STATE, *saved_files(self.path)] if self.path.is_dir() else [self.path]

    def first(self) -> Record:
        return next(self.head(), {})

    def head(self) -> Iterator[Record]:
        """Rows from the first, which has to be one, without those that cannot be read."""
        rows = self._batches(None, None, rows=1) if self._columnar else self._parse(None, None)
        for number, row in enumerate(rows):
            if not isinstance(row, InputError):
                yield row
            elif not number:
                raise row

    def size(self) -> int:
        return count_rows(self.path) if self._columnar else sum(1 for _ in self._lines())

    def rows(self, columns: tuple[str, ...] | None = None, chosen: Chosen | None = None) -> Iterator[Record]:
        """All rows, or those whose numbers are chosen, in rising order."""
        for row in self.every(columns, chosen):
            if isinstance(row, InputError):
                raise row
            yield row

    def every(
        self, columns: tuple[str, ...] | None = None, chosen: Chosen | None = None
    ) -> Iterator[Record | InputError]:
        """The same, with an error in place of a row that cannot be read."""
        return self._batches(columns, chosen) if self._columnar else self._parse(columns, chosen)

    def place(self, row: int) -> str:
        if self._columnar or self.path.suffix.lower() == ".json":
            return f"{self.path}, row {row + 1}"
        return f"{self.path}:{next((n for i, (n, _) in enumerate(self._lines()) if i == row), row + 1)}"

    @property
    def _columnar(self) -> bool:
        return self.path.is_dir() or self.path.suffix.lower() in TABLES

    def _batches(self, columns: tuple[str, ...] | None, chosen: Chosen | None, rows: int = ROWS) -> Iterator[Record]:
        names, start = None if columns is None else list(columns), 0
        for batch in batches(self.path, names, rows):
            size = batch.num_rows
            if chosen is not None:
                batch = batch.take(chosen[(chosen >= start) & (chosen < start + size)] - start)
            start += size
            yield from decode(self.path, partial(records_of, batch))

    def _parse(self, columns: tuple[str, ...] | None, chosen: Chosen | None) -> Iterator[Record | InputError]:
        """Lines that nobody chose are not parsed."""
        wanted = None if chosen is None else set(chosen.tolist())
        for i, (number, line) in enumerate(self._lines()):
            if wanted is None or i in wanted:
                row = self._record(line, number)
                if columns is not None and not isinstance(row, InputError):
                    row = {name: row[name] for name in columns if name in row}
                yield row

    def _lines(self) -> Iterator[tuple[int, Any]]:
        """Rows as they stand in the file, with the line that each begins or ends at."""
        kind = self.path.suffix.lower()
        with csvs.open_utf8(self.path) as file:
            if kind == ".jsonl":
                yield from ((n, line) for n, line in enumerate(file, 1) if not line.isspace())
            elif kind != ".json":
                yield from _delimited(file, self.path, "\t" if kind == ".tsv" else ",")
            elif JsonStream(file, str(self.path)).peek() == "[":
                yield from jsons.items(self.path)
            elif isinstance(content := jsons.content_of(self.path), dict):  # of columns
                columns = {name: values for name, values in content.items() if isinstance(values, list)}
                rows = zip(*columns.values(), strict=False)
                yield from enumerate((dict(zip(columns, row, strict=True)) for row in rows), 1)

    def _record(self, line: Any, number: int) -> Record | InputError:
        where = f"{self.path}:{number}"
        try:
            row = jsons.parse(line, where) if isinstance(line, str) else line
        except InputError as error:
            return error
        if not isinstance(row, dict | InputError):
            return InputError("is not an object", where=where, fix='give rows such as {"messages": [...]}')
        return row


def _delimited(file: TextIO, path: Path, delimiter: str) -> Iterator[tuple[int, Record | InputError]]:
    most = csv.field_size_limit(2**31 - 1)  # texts are longer than csv takes by itself
    try:
        lines = csvs.rows(file, path, delimiter)
        names = next((fields for _, fields in lines if fields), [])
        for line, fields in lines:
            if len(fields) == len(names):
                yield line, dict(zip(names, fields, strict=True))
            else:
                problem = "has other fields than the first line" if fields else "is blank"
                yield line, InputError(problem, where=f"{path}:{line}", fix="give every row the same columns")
    finally:
        csv.field_size_limit(most)
