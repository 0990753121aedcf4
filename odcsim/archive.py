"""Arrays of an NPZ, each read when it is asked for, and none that is more than its archive holds or anybody needs."""

import math
import zipfile
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

MOST = 2**31  # bytes of one array; a small archive may hold very many that are alike
_HEADS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Archive:
    """What is wrong with one is a ValueError, or one of zipfile's or zlib's own."""

    def __init__(self, file: BinaryIO) -> None:
        self._zip = zipfile.ZipFile(file)
        self.files = [name.removesuffix(".npy") for name in self._zip.namelist()]

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def shape(self, name: str) -> tuple[int, ...]:
        return self._head(name)[0]

    def __getitem__(self, name: str) -> NDArray[Any]:
        shape, fortran, dtype, at = self._head(name)
        array = np.empty(math.prod(shape), dtype)
        with self._member(name) as member:
            member.seek(at)
            buffer, filled = array.view(np.uint8) if array.nbytes else array, 0
            while filled < array.nbytes and (count := member.readinto(buffer[filled:])):
                filled += count
        if filled < array.nbytes:
            raise ValueError(f"'{name}' is cut short")
        return array.reshape(shape, order="F" if fortran else "C")

    def _head(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
        """Shape, order, type, and where the numbers begin."""
        with self._member(name) as member:
            read = _HEADS.get(npy.read_magic(member))
            if read is None:
                raise ValueError(f"'{name}' is no NPY of version 1 or 2")
            shape, fortran, dtype = read(member)
            at = member.tell()
        if dtype.hasobject:
            raise ValueError(f"'{name}' holds objects")
        size = math.prod(shape) * dtype.itemsize
        held = self._zip.getinfo(self._named(name)).file_size - at
        if min(shape, default=0) < 0 or size != held or (math.prod(shape) and not dtype.itemsize):
            raise ValueError(f"'{name}' claims {size:,} bytes and holds {held:,}")
        if size > MOST:
            raise ValueError(f"'{name}' has {size:,} bytes, more than {MOST:,}")
        return shape, fortran, dtype, at

    def _named(self, name: str) -> str:
        return f"{name}.npy" if f"{name}.npy" in self._zip.NameToInfo else name

    def _member(self, name: str) -> Any:
        return self._zip.open(self._named(name))
