"""Parquet, Arrow and folders that `save_to_disk` wrote: by pyarrow alone, a piece at a time."""

import json
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading import tokens
from odcsim.reading.arrays import decoded
from odcsim.reading.memory import MOST_ROWS, MemoryTable, check_sizes
from odcsim.reading.nested import head
from odcsim.reading.table import Table

STATE, SPLITS = "state.json", "dataset_dict.json"
BLOCK = 8192  # rows at a time: of lists, only what is counted stays
ROWS = 512  # at a time, where texts are looked at


def open_parquet(path: Path) -> Table:
    _pyarrow(path, "Parquet")
    schema = decoded(path, lambda: _parquet(path).schema_arrow)
    check_sizes(path, dict.fromkeys(schema.names, decoded(path, lambda: _parquet(path).metadata.num_rows)))
    return _table(
        path,
        schema,
        lambda name: (_field(batch, name) for batch in _parquet(path).iter_batches(BLOCK, columns=[name])),
    )


def open_arrow(path: Path) -> Table:
    return _streams(path, [path])


def open_saved(folder: Path) -> Table:
    """A dataset of Hugging Face: its state names the files, in order."""
    return _streams(folder, saved_files(folder))


def saved_files(folder: Path) -> list[Path]:
    state = decoded(folder / STATE, lambda: json.loads((folder / STATE).read_text(encoding="utf-8")))
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


def batches(path: Path, columns: list[str] | None) -> Iterator[Any]:
    """Rows in pieces, with these columns of them; none is enough to count rows."""
    if path.suffix.lower() == ".parquet" and path.is_file():
        _pyarrow(path, "Parquet")
        yield from _sound(path, decoded(path, lambda: _parquet(path)).iter_batches(ROWS, columns=columns))
        return
    _pyarrow(path, "Arrow")
    for file in saved_files(path) if path.is_dir() else [path]:
        pieces = (
            piece if columns is None else piece.select(columns)
            for batch in decoded(file, partial(_reader, file))[1]
            for piece in (batch.slice(start, ROWS) for start in range(0, batch.num_rows, ROWS))
        )
        yield from _sound(file, pieces)


def _sound(path: Path, pieces: Iterator[Any]) -> Iterator[Any]:
    """Of a damaged file pyarrow reads beyond the end, and the process dies of it, unless a piece is looked at first."""

    def next_one() -> Any:
        if (piece := next(pieces, None)) is not None:
            piece.validate(full=True)
        return piece

    while (piece := decoded(path, next_one)) is not None:
        yield piece


def _streams(path: Path, files: list[Path]) -> Table:
    _pyarrow(path, "Arrow")
    schema = decoded(path, lambda: _reader(files[0])[0])
    return _table(path, schema, lambda name: (_field(b, name) for file in files for b in _reader(file)[1]))


def _field(batch: Any, name: str) -> Any:
    """A column, or of a column of objects the field that the name leads to."""
    from pyarrow import compute

    top = head(name, batch.schema.names)
    column = batch.column(top)
    return column if name == top else compute.struct_field(column, name.removeprefix(f"{top}.").split("."))


def _reader(file: Path) -> tuple[Any, Iterator[Any]]:
    """Mapped into memory, so that tokens that nobody counts are never read. A stream, or a file with a footer."""
    import pyarrow

    source = pyarrow.memory_map(str(file))
    if source.read(6) == b"ARROW1":
        reader = pyarrow.ipc.open_file(source)
        return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
    source.seek(0)
    stream = pyarrow.ipc.open_stream(source)
    return stream.schema, iter(stream)


def _table(path: Path, schema: Any, columns: Any) -> MemoryTable:
    names, lists = decoded(path, lambda: (list(schema.names), [f.name for f in schema if _of_tokens(f.type)]))
    lists = frozenset(lists)
    return MemoryTable(path, names, lambda name: decoded(path, lambda: _joined(name, columns(name))), lists)


def _joined(name: str, columns: Iterator[Any]) -> Any:
    """An array where every piece is one; else a list, whose odd values are told by their row."""
    pieces, rows = [], 0
    for column in columns:
        column.validate(full=True)  # see _sound
        pieces.append(_values(name, column))
        if (rows := rows + len(column)) > MOST_ROWS:  # a column of nothing but nulls takes no bytes
            raise ValueError(f"more than {MOST_ROWS:,} rows")
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(pieces) if pieces else np.array([], np.int64)
    return [value for piece in pieces for value in (piece.tolist() if isinstance(piece, np.ndarray) else piece)]


def _values(name: str, column: Any) -> Any:
    from pyarrow import compute, types

    if _of_tokens(column.type):
        lengths = compute.list_value_length(column)
        if column.null_count or name.lower() not in (*tokens.LABELS, *tokens.MASKS):
            column = lengths
        else:
            flat = compute.fill_null(column.flatten(), tokens.UNSEEN if name.lower() in tokens.LABELS else 0)
            return tokens.counts(name, lengths.to_numpy(zero_copy_only=False).astype(np.int64), flat.to_numpy())
    if column.null_count == 0 and (types.is_integer(column.type) or types.is_floating(column.type)):
        return column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


def _of_tokens(kind: Any) -> bool:
    from pyarrow import types

    nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return nested and bool(types.is_integer(kind.value_type))


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path)


def _pyarrow(path: Path, what: str) -> None:
    try:
        import_module("pyarrow")
    except ImportError:
        raise InputError(
            f"{what} needs pyarrow", where=str(path), fix="install it with: pip install 'odcsim[data]'"
        ) from None
