"""Parquet, Arrow and folders that `save_to_disk` wrote: by pyarrow alone, a piece at a time."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading import tokens
from odcsim.reading.arrays import decoded
from odcsim.reading.batches import arrow_batches, arrow_schema, check_pyarrow, parquet_batches, parquet_file, sound
from odcsim.reading.memory import PIECE, MemoryTable, Piece, check_sizes
from odcsim.reading.nested import head
from odcsim.reading.table import Table
from odcsim.support import budget
from odcsim.support.inputs import read_text

STATE, SPLITS = "state.json", "dataset_dict.json"
ROWS = 512  # at a time, where texts are looked at
LISTED = 1 << 22  # tokens of lists that are looked at together


def open_parquet(path: Path) -> Table:
    check_pyarrow(path, "Parquet")
    file = decoded(path, lambda: parquet_file(path))
    check_sizes(path, dict.fromkeys(file.schema_arrow.names, file.metadata.num_rows))
    return _table(path, file.schema_arrow, lambda names: sound(path, parquet_batches(path, names, PIECE)))


def open_arrow(path: Path) -> Table:
    return _streams(path, [path])


def open_saved(folder: Path) -> Table:
    """A dataset of Hugging Face: its state names the files, in order."""
    return _streams(folder, saved_files(folder))


def saved_files(folder: Path) -> list[Path]:
    state = decoded(folder / STATE, lambda: json.loads(read_text(folder / STATE)))
    names = decoded(folder / STATE, lambda: [Path(file["filename"]).name for file in state["_data_files"]])
    missing = next((name for name in names if not (folder / name).is_file()), None)
    if not names or missing is not None:
        problem = f"has no {missing}" if missing else "names no files"
        raise InputError(problem, where=str(folder), fix="save the dataset again")
    return [folder / name for name in names]


def is_saved(folder: Path) -> bool:
    """Whether it is a dataset; one of several splits is an error that names them."""
    if (folder / SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
        fix = f"name one: {folder / splits[0]}" if splits else "save the dataset again"
        raise InputError(f"holds the splits {', '.join(splits) or 'of nothing'}", where=str(folder), fix=fix)
    return (folder / STATE).is_file()


def batches(path: Path, columns: list[str] | None, rows: int = ROWS) -> Iterator[Any]:
    """Rows in pieces, with what there is of these columns."""
    if path.suffix.lower() == ".parquet" and path.is_file():
        check_pyarrow(path, "Parquet")
        there = columns and [name for name in columns if name in parquet_file(path).schema_arrow.names]
        yield from sound(path, parquet_batches(path, there, rows, texts=True))
        return
    check_pyarrow(path, "Arrow")
    for file in saved_files(path) if path.is_dir() else [path]:
        yield from sound(file, arrow_batches(file, columns, rows))


def count_rows(path: Path) -> int:
    if path.suffix.lower() == ".parquet" and path.is_file():
        check_pyarrow(path, "Parquet")
        return int(decoded(path, lambda: parquet_file(path).metadata.num_rows))
    check_pyarrow(path, "Arrow")
    files = saved_files(path) if path.is_dir() else [path]
    return sum(batch.num_rows for file in files for batch in sound(file, arrow_batches(file, [], None)))


def _streams(path: Path, files: list[Path]) -> Table:
    check_pyarrow(path, "Arrow")

    def every(names: list[str]) -> Iterator[Any]:
        return chain.from_iterable(sound(file, arrow_batches(file, names, PIECE)) for file in files)

    return _table(path, decoded(path, lambda: arrow_schema(files[0])), every)


def _table(path: Path, schema: Any, every: Any) -> MemoryTable:
    lists = frozenset(field.name for field in schema if _of_tokens(field.type))

    def read(wanted: tuple[str, ...]) -> Iterator[Piece]:
        for batch in every(list(wanted)):
            yield {name: decoded(path, partial(_values, path, name, batch)) for name in wanted}

    return MemoryTable(path, list(schema.names), read, lists)


def _field(batch: Any, name: str) -> Any:
    """A column, or of a column of objects the field that the name leads to."""
    from pyarrow import compute

    top = head(name, batch.schema.names)
    column = batch.column(top)
    return column if name == top else compute.struct_field(column, name.removeprefix(f"{top}.").split("."))


def _values(path: Path, name: str, batch: Any) -> Any:
    """An array of numbers where it is one; else values, whose odd ones are told by their row."""
    from pyarrow import compute, types

    column = _field(batch, name)
    if _of_tokens(column.type):
        if name.lower() in (*tokens.LABELS, *tokens.MASKS):
            counts = np.full(len(column), np.nan)
            counts[column.is_valid().to_numpy(zero_copy_only=False)] = _counting(path, name, column.drop_null())
            return counts
        column = compute.list_value_length(column)
    if column.null_count == 0 and (types.is_integer(column.type) or types.is_floating(column.type)):
        return column.to_numpy(zero_copy_only=False)
    if types.is_dictionary(column.type):
        known = [*column.dictionary.to_pylist(), None]
        return (known[i] for i in compute.fill_null(column.indices, len(known) - 1).to_pylist())
    return (value.as_py() for value in column)


def _counting(path: Path, name: str, column: Any) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How many tokens of each list count. Lists may overlap: a short column may have very many."""
    from pyarrow import compute

    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    if lengths.sum() > LISTED and len(column) > 1:
        middle = len(column) // 2
        halves = column.slice(0, middle), column.slice(middle)
        return np.concatenate([_counting(path, name, half) for half in halves])
    budget.check(32.0 * lengths.sum(), "a list of tokens", path)
    flat = compute.fill_null(column.flatten(), tokens.UNSEEN if name.lower() in tokens.LABELS else 0)
    return tokens.counts(name, lengths, flat.to_numpy())


def _of_tokens(kind: Any) -> bool:
    from pyarrow import types

    listed = "list large_list fixed_size_list list_view large_list_view".split()
    known = (getattr(types, f"is_{name}", None) for name in listed)  # views are younger than the oldest pyarrow
    return any(each(kind) for each in known if each) and bool(types.is_integer(kind.value_type))
