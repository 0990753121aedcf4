"""Arrays of an NPZ, each read when it is asked for, whole or in pieces, and none believed how much it holds."""

import io
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from odcsim.support import budget

COPIES = 3  # of an array, with what it is checked by
_HEADS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LONGEST = 1 << 16  # bytes of a head; numpy takes ten thousand


@dataclass(frozen=True, slots=True)
class NumpyHeader:
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    at: int  # where the numbers begin

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        return self.count * self.dtype.itemsize


class Archive:
    """What is wrong with one is a ValueError, or one of zipfile's or zlib's own; what is too large an InputError."""

    def __init__(self, file: BinaryIO, where: object = "") -> None:
        self._zip, self._where, self._size = zipfile.ZipFile(file), where, 0
        self.files = [name.removesuffix(".npy") for name in self._zip.namelist()]

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def shape(self, name: str) -> tuple[int, ...]:
        return self._head(name).shape

    def __getitem__(self, name: str) -> NDArray[Any]:
        """All of it; what was asked for before is taken to be held still."""
        head = self._head(name)
        self._size += head.size
        budget.check(COPIES * self._size, "arrays", self._where)
        with self._member(name) as member:
            member.seek(head.at)
            array = filled(member, head.count, head.dtype, name)
        return array.reshape(head.shape, order="F" if head.fortran else "C")

    def pieces(self, name: str, rows: int) -> Iterator[NDArray[Any]]:
        """So many rows at a time; of an array of several dimensions none, in its shape."""
        head = self._head(name)
        with self._member(name) as member:
            member.seek(head.at)
            yield from pieces(member, head, rows, name)

    def _head(self, name: str) -> NumpyHeader:
        with self._member(name) as member:
            head = head_of(member, name)
        size = head.size
        held = self._zip.getinfo(self._named(name)).file_size - head.at
        if min(head.shape, default=0) < 0 or size != held or (head.count and not head.dtype.itemsize):
            raise ValueError(f"'{name}' claims {size:,} bytes and holds {held:,}")
        return head

    def _named(self, name: str) -> str:
        return f"{name}.npy" if f"{name}.npy" in self._zip.NameToInfo else name

    def _member(self, name: str) -> Any:
        return self._zip.open(self._named(name))


def head_of(file: Any, name: str) -> NumpyHeader:
    """What stands before the numbers of an NPY, however long it claims to be."""
    start = io.BytesIO(file.read(_LONGEST))
    read = _HEADS.get(npy.read_magic(start))
    if read is None:
        raise ValueError(f"'{name}' is no NPY of version 1 or 2")
    shape, fortran, dtype = read(start)
    if dtype.hasobject:
        raise ValueError(f"'{name}' holds objects")
    return NumpyHeader(shape, fortran, dtype, start.tell())


def pieces(file: Any, head: NumpyHeader, rows: int, name: str) -> Iterator[NDArray[Any]]:
    """What follows a head, so many rows at a time."""
    if len(head.shape) != 1:
        yield np.zeros([0] * len(head.shape), head.dtype)
        return
    for start in range(0, head.shape[0], rows):
        yield filled(file, min(rows, head.shape[0] - start), head.dtype, name)


def filled(file: Any, count: int, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    array = np.empty(count, dtype)
    buffer, size = array.view(np.uint8) if array.nbytes else array, 0
    while size < array.nbytes and (read := file.readinto(buffer[size:])):
        size += read
    if size < array.nbytes:
        raise ValueError(f"'{name}' is cut short")
    return array
