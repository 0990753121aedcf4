"""A sweep's table as a file: CSV, JSON lines or Parquet, a block of rows at a time."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from odcsim.decide.sweeps.columns import KINDS
from odcsim.decide.sweeps.work import Done, Values
from odcsim.errors import InputError
from odcsim.support.files import replacing

BLOCK = 16_384  # rows at a time


def check(path: Path) -> None:
    """Whether it can be written: worth asking before the work is done."""
    if path.suffix.lower() not in _WRITERS:
        raise InputError(
            "is no table's name", where=str(path), fix=f"name it {', '.join(f'FILE{s}' for s in _WRITERS)}"
        )
    if path.suffix.lower() == ".parquet":
        _pyarrow(path)


def write(path: Path, results: Iterable[Done]) -> int:
    """How many rows there were."""
    count = 0

    def rows() -> Iterator[Values]:
        nonlocal count
        for result in results:
            count += len(result.rows)
            yield from result.rows

    with replacing(path) as file:
        _WRITERS[path.suffix.lower()](file, rows())
    return count


def _csv(file: BinaryIO, rows: Iterable[Values]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    writer = csv.DictWriter(text, list(KINDS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    text.flush()
    text.detach()


def _jsonl(file: BinaryIO, rows: Iterable[Values]) -> None:
    for row in rows:
        file.write(json.dumps({name: row[name] for name in KINDS if name in row}, allow_nan=False).encode() + b"\n")


def _parquet(file: BinaryIO, rows: Iterable[Values]) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), bool: pyarrow.bool_(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in KINDS.items()])
    left = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while block := list(islice(left, BLOCK)):
            columns = {name: [_as(kind, row.get(name)) for row in block] for name, kind in KINDS.items()}
            writer.write_table(pyarrow.table(columns, schema))


def _as(kind: type, value: Any) -> Any:
    return float(value) if kind is float and value is not None else value


def _pyarrow(path: Path) -> None:
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        fix = "pip install 'odcsim[data]', or name it FILE.csv"
        raise InputError("Parquet needs pyarrow", where=str(path), fix=fix) from None


_WRITERS: dict[str, Callable[[BinaryIO, Iterable[Values]], None]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".jsonl": _jsonl,
}
