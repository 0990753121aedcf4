"""NPY, NPZ and Megatron's index. Decoders raise nearly anything on damaged bytes: all of it is one thing to users."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from odcsim.archive import Archive
from odcsim.errors import InputError
from odcsim.reading.memory import MemoryTable, check_sizes, of_columns
from odcsim.reading.table import Table


def open_numpy(path: Path) -> Table:
    """Arrays of numbers; one of objects would have to be unpickled, which can run code, and is refused."""
    if zipfile.is_zipfile(path):
        table: Table = decoded(path, lambda: _archive(path))
        return table
    # Mapped, so that a file is not taken by its word for how much it holds, nor read where nobody wants it.
    array = decoded(path, lambda: open_memmap(path, mode="r"))
    return of_columns(
        path, {name: array[name] for name in array.dtype.names} if array.dtype.names else {"length": array}
    )


def _archive(path: Path) -> Table:
    """Columns are members, of which the only one needs no name."""
    with path.open("rb") as file, Archive(file) as archive:
        names, shapes = archive.files, [archive.shape(name) for name in archive.files]
    columns = {"length" if names == ["arr_0"] else name: name for name in names}
    sizes = {column: shape[0] if shape else 0 for column, shape in zip(columns, shapes, strict=True)}
    check_sizes(path, sizes)
    return MemoryTable(path, list(columns), lambda column: decoded(path, lambda: _member(path, columns[column])))


def _member(path: Path, name: str) -> Any:
    with path.open("rb") as file, Archive(file) as archive:
        return archive[name]


MEGATRON = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the tokens' type, sequences, documents + 1


def open_megatron(path: Path) -> Table:
    """The `.idx` beside a `.bin` of tokens holds the length of every sequence, right behind its head."""
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        magic, version, _, count, _ = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0, 0, 0)
        if magic != MEGATRON or version != 1:
            raise InputError("is no index of Megatron's, version 1", where=str(path), fix="name the .idx beside a .bin")
        if _HEAD.size + 4 * count > path.stat().st_size:
            raise InputError(f"is cut short of its {count:,} lengths", where=str(path), fix="copy the file again")
        return of_columns(path, {"length": np.fromfile(file, np.dtype("<i4"), count)})


def decoded(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "pickle" in reason.lower() or "object" in reason:
            reason = "an array of objects, or no NPY at all"
        raise InputError(
            f"cannot be read ({reason[:120]})", where=str(path), fix="check that the file is whole and of numbers"
        ) from None
