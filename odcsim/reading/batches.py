"""Record batches of Parquet and Arrow files, of few enough rows that a batch takes little memory."""

import mmap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.reading.arrays import soundly
from odcsim.reading.nested import head

BYTES = 1 << 25  # of a batch, if its rows are as the others of their group
VALUE = 16  # bytes of a value, with the places of lists
_BUFFER = 1 << 20  # bytes of a column that are read from disk at a time


def check_pyarrow(path: Path, what: str) -> None:
    try:
        import_module("pyarrow")
    except ImportError:
        raise InputError(
            f"{what} needs pyarrow", where=str(path), fix="install it with: pip install 'odcsim[data]'"
        ) from None


def parquet_file(path: Path, whole: tuple[str, ...] = ()) -> Any:
    """`whole`: texts that are kept once each, with their places."""
    from pyarrow import parquet

    return parquet.ParquetFile(path, buffer_size=_BUFFER, read_dictionary=list(whole))


def parquet_batches(path: Path, columns: list[str] | None, rows: int, *, texts: bool = False) -> Iterator[Any]:
    """`texts`: each row's own, not their places among texts that are alike."""
    from pyarrow import types

    schema = parquet_file(path).schema_arrow
    alike = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    file = parquet_file(path, () if texts else tuple(alike))
    for number in range(file.num_row_groups):
        fitting = _fitting(file.metadata.row_group(number), columns, rows)
        yield from file.iter_batches(fitting, row_groups=[number], columns=columns, use_threads=False)


def _fitting(group: Any, columns: list[str] | None, rows: int) -> int:
    """How many rows have so many values that they make one batch."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    tops = None if columns is None else {name.partition(".")[0] for name in columns}
    wanted = [chunk for chunk in chunks if tops is None or chunk.path_in_schema.partition(".")[0] in tops]
    size: int = sum(VALUE * chunk.num_values + chunk.total_uncompressed_size for chunk in wanted)
    return max(1, min(rows, BYTES * int(group.num_rows) // max(size, 1)))


def arrow_schema(file: Path) -> Any:
    return _reader(file, None)[1]


def arrow_batches(file: Path, columns: list[str] | None, rows: int | None) -> Iterator[Any]:
    """With what there is of these columns. What has been looked at is let go of: it lies on disk."""
    mapped, _, every = _reader(file, columns)
    for batch in every:
        for start in range(0, batch.num_rows, rows) if rows else [0]:
            yield batch.slice(start, rows)
            if hasattr(mapped, "madvise"):
                mapped.madvise(mmap.MADV_DONTNEED)


def _reader(file: Path, columns: list[str] | None) -> tuple[mmap.mmap, Any, Iterator[Any]]:
    """Mapped into memory, so that tokens that nobody counts are never read. A stream, or a file with a footer."""
    import pyarrow

    with file.open("rb") as raw:
        mapped = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
    source, framed = pyarrow.py_buffer(mapped), mapped[:6] == b"ARROW1"
    opened = pyarrow.ipc.open_file if framed else pyarrow.ipc.open_stream
    reader = opened(source)
    if columns is not None:
        tops = {head(name, reader.schema.names) for name in columns}
        places = [i for i, name in enumerate(reader.schema.names) if name in tops]
        fields = places or [0]  # none stands for all of them
        reader = opened(source, options=pyarrow.ipc.IpcReadOptions(included_fields=fields))
    every = (reader.get_batch(i) for i in range(reader.num_record_batches)) if framed else iter(reader)
    return mapped, reader.schema, every if columns is None or places else (batch.select([]) for batch in every)


def sound(path: Path, pieces: Iterator[Any]) -> Iterator[Any]:
    """Of a damaged file pyarrow reads beyond the end, and the process dies of it, unless a piece is looked at first."""
    return soundly(path, map(_checked, pieces))


def _checked(piece: Any) -> Any:
    piece.validate(full=True)
    return piece
