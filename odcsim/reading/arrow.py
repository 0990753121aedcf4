"""Parquet, Arrow and folders that `save_to_disk` wrote: by pyarrow alone, a piece at a time."""

import json
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.arrays import decode, sound_pieces
from odcsim.reading.fields import LABELS, MASKS, UNSEEN, column_of, count_each
from odcsim.reading.table import PIECE, MemoryTable, Piece, Table, check_sizes
from odcsim.support import budget
from odcsim.support.inputs import read_text

STATE, SPLITS = "state.json", "dataset_dict.json"
ROWS = 512  # at a time, where texts are looked at
LISTED = 1 << 22  # tokens of lists that are looked at together
BYTES = 1 << 25  # of a batch, if its rows are as the others of their group
VALUE = 16  # bytes of a value, with the places of lists
JSON = "arrow.json"  # the extension of columns of JSON
_BUFFER = 1 << 20  # bytes of a column that are read from disk at a time


def open_parquet(path: Path) -> Table:
    check_pyarrow(path, "Parquet")
    file = decode(path, lambda: parquet_file(path))
    check_sizes(path, dict.fromkeys(file.schema_arrow.names, file.metadata.num_rows))
    return _table(path, file.schema_arrow, lambda names: validated(path, parquet_batches(path, names, PIECE)))


def open_arrow(path: Path) -> Table:
    return _streams(path, [path])


def open_saved(folder: Path) -> Table:
    """A dataset of Hugging Face: its state names the files, in order."""
    return _streams(folder, saved_files(folder))


def saved_files(folder: Path) -> list[Path]:
    state = decode(folder / STATE, lambda: json.loads(read_text(folder / STATE)))
    names = decode(folder / STATE, lambda: [Path(file["filename"]).name for file in state["_data_files"]])
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


def _streams(path: Path, files: list[Path]) -> Table:
    check_pyarrow(path, "Arrow")

    def every(names: list[str]) -> Iterator[Any]:
        return chain.from_iterable(validated(file, arrow_batches(file, names, PIECE)) for file in files)

    return _table(path, decode(path, lambda: read_arrow(files[0], None)[1]), every)


def _table(path: Path, schema: Any, every: Callable[[list[str]], Iterator[Any]]) -> MemoryTable:
    lists = frozenset(field.name for field in schema if _of_tokens(field.type))

    def read(wanted: tuple[str, ...]) -> Iterator[Piece]:
        for batch in every(list(wanted)):
            yield {name: decode(path, partial(_values, path, name, batch)) for name in wanted}

    return MemoryTable(path, list(schema.names), read, lists)


def _values(path: Path, name: str, batch: Any) -> Any:
    """An array of numbers where it is one; else values, whose odd ones are told by their row. The name may lead into a
    column of objects."""
    from pyarrow import compute, types

    top = column_of(name, batch.schema.names)
    column = batch.column(top)
    if name != top:
        column = compute.struct_field(column, name.removeprefix(f"{top}.").split("."))
    if _of_tokens(column.type):
        if name.lower() in (*LABELS, *MASKS):
            counts = np.full(len(column), np.nan)
            counts[column.is_valid().to_numpy(zero_copy_only=False)] = _count_tokens(path, name, column.drop_null())
            return counts
        column = compute.list_value_length(column)
    if column.null_count == 0 and (types.is_integer(column.type) or types.is_floating(column.type)):
        return column.to_numpy(zero_copy_only=False)
    if types.is_dictionary(column.type):
        known = [*column.dictionary.to_pylist(), None]
        return (known[i] for i in compute.fill_null(column.indices, len(known) - 1).to_pylist())
    return (value.as_py() for value in column)


def _count_tokens(path: Path, name: str, column: Any) -> NDArray[np.int64]:
    """How many tokens of each list count. Lists may overlap: a short column may have very many."""
    from pyarrow import compute

    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    if lengths.sum() > LISTED and len(column) > 1:
        middle = len(column) // 2
        halves = column.slice(0, middle), column.slice(middle)
        return np.concatenate([_count_tokens(path, name, half) for half in halves])
    budget.check(32.0 * lengths.sum(), "a list of tokens", path)
    flat = compute.fill_null(column.flatten(), UNSEEN if name.lower() in LABELS else 0)
    return count_each(name, lengths, flat.to_numpy())


def _of_tokens(kind: Any) -> bool:
    from pyarrow import types

    names = "list large_list fixed_size_list list_view large_list_view".split()
    known = (getattr(types, f"is_{name}", None) for name in names)  # views are younger than the oldest pyarrow
    return any(each(kind) for each in known if each) and bool(types.is_integer(kind.value_type))


def batches(path: Path, columns: list[str] | None, rows: int = ROWS) -> Iterator[Any]:
    """Rows in pieces, with what there is of these columns."""
    if is_parquet(path):
        there = columns and [name for name in columns if name in parquet_file(path).schema_arrow.names]
        yield from validated(path, parquet_batches(path, there, rows, texts=True))
        return
    for file in _arrow_files(path):
        yield from validated(file, arrow_batches(file, columns, rows))


def count_rows(path: Path) -> int:
    if is_parquet(path):
        return int(decode(path, lambda: parquet_file(path).metadata.num_rows))
    every = (batch for file in _arrow_files(path) for batch in validated(file, arrow_batches(file, [], None)))
    return sum(batch.num_rows for batch in every)


def is_parquet(path: Path) -> bool:
    """Whether it is, where pyarrow can read it; else it is Arrow."""
    parquet = path.suffix.lower() == ".parquet" and path.is_file()
    check_pyarrow(path, "Parquet" if parquet else "Arrow")
    return parquet


def _arrow_files(path: Path) -> list[Path]:
    return saved_files(path) if path.is_dir() else [path]


def check_pyarrow(path: Path, what: str) -> None:
    try:
        import_module("pyarrow")
    except ImportError:
        raise InputError(
            f"{what} needs pyarrow", where=str(path), fix="install it with: pip install 'odcsim[data]'"
        ) from None


def parquet_file(path: Path, alike: tuple[str, ...] = ()) -> Any:
    """`alike`: texts that are kept once each, with their places."""
    from pyarrow import parquet

    return parquet.ParquetFile(path, buffer_size=_BUFFER, read_dictionary=list(alike))


def parquet_batches(path: Path, columns: list[str] | None, rows: int, *, texts: bool = False) -> Iterator[Any]:
    """Of so few rows that a batch takes little memory. `texts`: each row's own, not their places among those alike."""
    from pyarrow import types

    schema = parquet_file(path).schema_arrow
    alike = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    file = parquet_file(path, () if texts else tuple(alike))
    tops = None if columns is None else {name.partition(".")[0] for name in columns}
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(i) for i in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if tops is None or chunk.path_in_schema.partition(".")[0] in tops]
        size: int = sum(VALUE * chunk.num_values + chunk.total_uncompressed_size for chunk in chunks)
        few = max(1, min(rows, BYTES * int(group.num_rows) // max(size, 1)))
        yield from file.iter_batches(few, row_groups=[number], columns=columns, use_threads=False)


def arrow_batches(file: Path, columns: list[str] | None, rows: int | None) -> Iterator[Any]:
    """With what there is of these columns. What has been looked at is let go of: it lies on disk."""
    mapped, _, every = read_arrow(file, columns)
    for batch in every:
        for start in range(0, batch.num_rows, rows) if rows else [0]:
            yield batch.slice(start, rows)
            if hasattr(mapped, "madvise"):
                mapped.madvise(mmap.MADV_DONTNEED)


def read_arrow(file: Path, columns: list[str] | None) -> tuple[mmap.mmap, Any, Iterator[Any]]:
    """The file mapped into memory, so that tokens that nobody counts are never read; its schema and its batches. It is
    a stream, or a file with a footer."""
    import pyarrow

    with file.open("rb") as raw:
        mapped = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
    source, framed = pyarrow.py_buffer(mapped), mapped[:6] == b"ARROW1"
    opened = pyarrow.ipc.open_file if framed else pyarrow.ipc.open_stream
    reader = opened(source)
    if columns is not None:
        tops = {column_of(name, reader.schema.names) for name in columns}
        places = [i for i, name in enumerate(reader.schema.names) if name in tops]
        fields = places or [0]  # none stands for all of them
        reader = opened(source, options=pyarrow.ipc.IpcReadOptions(included_fields=fields))
    every = (reader.get_batch(i) for i in range(reader.num_record_batches)) if framed else iter(reader)
    return mapped, reader.schema, every if columns is None or places else (batch.select([]) for batch in every)


def validated(path: Path, pieces: Iterator[Any]) -> Iterator[Any]:
    """Of a damaged file pyarrow reads beyond the end, and the process dies of it, unless a piece is looked at first."""

    def validate(piece: Any) -> Any:
        piece.validate(full=True)
        return piece

    return sound_pieces(path, map(validate, pieces))


def records_of(batch: Any) -> list[dict[str, Any]]:
    """Rows of a piece of a table. JSON inside is what it says: datasets writes so what differs from row to row."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    readers = {field.name: reader for field in batch.schema if (reader := _json_reader(field))}
    for row in rows:
        row |= {name: read(row[name]) for name, read in readers.items()}
    return rows


def _json_reader(field: Any) -> Callable[[Any], Any] | None:
    """What makes values of it, where there is JSON in them."""
    from pyarrow import types

    kind = field.type
    # A pyarrow that does not know the extension leaves its name beside the field.
    beside = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    if JSON in (getattr(kind, "extension_name", ""), beside):
        return lambda text: None if text is None else json.loads(text)
    if types.is_struct(kind):
        readers = {inner.name: reader for inner in kind if (reader := _json_reader(inner))}
        if not readers:
            return None
        return lambda value: (
            None if value is None else {**value, **{name: read(value[name]) for name, read in readers.items()}}
        )
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if listed and (read := _json_reader(kind.value_field)):
        return lambda values: None if values is None else [read(value) for value in values]
    return None
