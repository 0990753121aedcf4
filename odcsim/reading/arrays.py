"""NPY, NPZ and Megatron's index. Decoders raise nearly anything on damaged bytes: all of it is one thing to users."""

import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.table import PIECE, MemoryTable, Piece, Table, check_sizes
from odcsim.support.inputs import Archive, NumpyHeader, read_header, read_pieces


def open_numpy(path: Path) -> Table:
    """Arrays of numbers; one of objects would have to be unpickled, which can run code, and is refused."""
    if zipfile.is_zipfile(path):
        return _open_archive(path)

    def read() -> NumpyHeader:
        with path.open("rb") as file:
            head = read_header(file, path.name)
        if min(head.shape, default=0) < 0 or head.at + head.size > path.stat().st_size:
            raise ValueError("it is cut short of the shape that it claims")
        return head

    head = decode(path, read)
    names = list(head.dtype.names or ("length",))
    check_sizes(path, dict.fromkeys(names, head.shape[0] if head.shape else 0))
    return MemoryTable(path, names, lambda wanted: sound_pieces(path, _rows(path, head, wanted)))


def _rows(path: Path, head: NumpyHeader, wanted: tuple[str, ...]) -> Iterator[Piece]:
    with path.open("rb") as file:
        file.seek(head.at)
        for piece in read_pieces(file, head, PIECE, path.name):
            yield {name: piece[name] for name in wanted} if head.dtype.names else {wanted[0]: piece}


def _open_archive(path: Path) -> Table:
    """Columns are members, of which the only one needs no name."""

    def read() -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
        with path.open("rb") as file, Archive(file, path) as archive:
            columns = {"length" if archive.files == ["arr_0"] else name: name for name in archive.files}
            return columns, dict(zip(columns, map(archive.shape, archive.files), strict=True))

    def pieces(wanted: tuple[str, ...]) -> Iterator[Piece]:
        with path.open("rb") as file, Archive(file, path) as archive:
            every = [archive.pieces(columns[name], PIECE) for name in wanted]
            for piece in zip(*every, strict=True):
                yield dict(zip(wanted, piece, strict=True))

    columns, shapes = decode(path, read)
    check_sizes(path, {column: shape[0] if shape else 0 for column, shape in shapes.items()})
    return MemoryTable(path, list(columns), lambda wanted: sound_pieces(path, pieces(wanted)))


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
    return MemoryTable(path, ["length"], lambda wanted: sound_pieces(path, _rows(path, head, wanted)))


def decode(path: Path, read: Callable[[], Any]) -> Any:
    """What `read` makes of a file, whatever is wrong with it told in one line."""
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


def sound_pieces(path: Path, pieces: Iterator[Any]) -> Iterator[Any]:
    """The same pieces, whatever is wrong with one of them told in one line."""
    while (piece := decode(path, lambda: next(pieces, None))) is not None:
        yield piece
