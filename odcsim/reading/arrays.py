"""NPY, NPZ and Megatron's index. Decoders raise nearly anything on damaged bytes: all of it is one thing to users."""

import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.memory import PIECE, MemoryTable, Piece, check_sizes
from odcsim.reading.table import Table
from odcsim.support.inputs import Archive, NumpyHeader, read_header, read_pieces


def open_numpy(path: Path) -> Table:
    """Arrays of numbers; one of objects would have to be unpickled, which can run code, and is refused."""
    if zipfile.is_zipfile(path):
        table: Table = decoded(path, lambda: _archive(path))
        return table
    head = decoded(path, lambda: _head(path))
    names = list(head.dtype.names or ("length",))
    check_sizes(path, dict.fromkeys(names, head.shape[0] if head.shape else 0))
    return MemoryTable(path, names, lambda wanted: soundly(path, _rows(path, head, wanted)))


def _head(path: Path) -> NumpyHeader:
    """A file is not taken by its word for how much it holds."""
    with path.open("rb") as file:
        head = read_header(file, path.name)
    if min(head.shape, default=0) < 0 or head.at + head.size > path.stat().st_size:
        raise ValueError("it is cut short of the shape that it claims")
    return head


def _rows(path: Path, head: NumpyHeader, wanted: tuple[str, ...]) -> Iterator[Piece]:
    with path.open("rb") as file:
        file.seek(head.at)
        for piece in read_pieces(file, head, PIECE, path.name):
            yield {name: piece[name] for name in wanted} if head.dtype.names else {wanted[0]: piece}


def _archive(path: Path) -> Table:
    """Columns are members, of which the only one needs no name."""
    with path.open("rb") as file, Archive(file, path) as archive:
        names, shapes = archive.files, [archive.shape(name) for name in archive.files]
    columns = {"length" if names == ["arr_0"] else name: name for name in names}
    sizes = {column: shape[0] if shape else 0 for column, shape in zip(columns, shapes, strict=True)}
    check_sizes(path, sizes)
    return MemoryTable(
        path, list(columns), lambda wanted: soundly(path, _members(path, {name: columns[name] for name in wanted}))
    )


def _members(path: Path, members: dict[str, str]) -> Iterator[Piece]:
    with ExitStack() as opened:
        archive = opened.enter_context(Archive(opened.enter_context(path.open("rb")), path))
        every = [archive.pieces(member, PIECE) for member in members.values()]
        for piece in zip(*every, strict=True):
            yield dict(zip(members, piece, strict=True))


MEGATRON = b"MMIDIDX\x00\x00"
_MEGATRON = struct.Struct("<9sQBQQ")  # magic, version, code of the tokens' type, sequences, documents + 1


def open_megatron(path: Path) -> Table:
    """The `.idx` beside a `.bin` of tokens holds the length of every sequence, right behind its head."""
    with path.open("rb") as file:
        start = file.read(_MEGATRON.size)
    magic, version, _, count, _ = _MEGATRON.unpack(start) if len(start) == _MEGATRON.size else (b"", 0, 0, 0, 0)
    if magic != MEGATRON or version != 1:
        raise InputError("is not a Megatron index (version 1)", where=str(path), fix="name the .idx beside a .bin")
    if _MEGATRON.size + 4 * count > path.stat().st_size:
        raise InputError(f"is cut short of its {count:,} lengths", where=str(path), fix="copy the file again")
    check_sizes(path, {"length": count})
    head = NumpyHeader((count,), False, np.dtype("<i4"), _MEGATRON.size)
    return MemoryTable(path, ["length"], lambda wanted: soundly(path, _rows(path, head, wanted)))


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


def soundly(path: Path, pieces: Iterator[Any]) -> Iterator[Any]:
    """The same pieces, whatever is wrong with one of them told in one line."""
    while (piece := decoded(path, lambda: next(pieces, None))) is not None:
        yield piece
