"""What is packed by gzip or comes by a pipe lies as a plain file for as long as it is read."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from odcsim.errors import InputError
from odcsim.support.files import scratch
from odcsim.support.inputs import GZIP, unpack

PIPE, PACKED = "-", ".gz"
MOST = 2**33  # bytes on disk that come by a pipe
MARKS = {
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"\xff\xff\xff\xff": ".arrow",
    b"\x93NUMPY": ".npy",
    b"PK\x03\x04": ".npz",
    b"MMIDIDX": ".idx",
    b"[": ".json",
    b"{": ".jsonl",
}


@contextmanager
def plain(path: Path) -> Iterator[Path]:
    """The file itself, or a copy of what is in it. What is wrong in the copy is told of the file."""
    if str(path) != PIPE and (path.suffix.lower() != PACKED or not path.is_file()):
        yield path
        return
    with scratch() as folder:
        copy = _copy(path, folder)
        try:
            yield copy
        except InputError as error:
            where = error.where.replace(str(copy), "stdin" if str(path) == PIPE else str(path))
            raise InputError(error.problem, where=where, fix=error.fix) from None


def _copy(path: Path, folder: Path) -> Path:
    if str(path) != PIPE:
        return _unpacked(path, folder / path.stem)
    taken = folder / "taken"
    with taken.open("wb") as file:
        _taken(file)
    if _begins(taken, GZIP):
        taken = _unpacked(taken, folder / "unpacked")
    return taken.rename(folder / f"stdin{_suffix(taken)}")


def _unpacked(path: Path, copy: Path) -> Path:
    with path.open("rb") as given, unpack(given, path) as packed, copy.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    return copy


def _taken(file: BinaryIO) -> None:
    size = 0
    while block := sys.stdin.buffer.read(1 << 20):
        size += len(block)
        if size > MOST:
            raise InputError(f"gives more than {MOST:,} bytes", where="stdin", fix="save it to a file")
        file.write(block)


def _suffix(file: Path) -> str:
    """What came by a pipe has no name: its first bytes tell what it is, and else it is CSV."""
    found = next((suffix for mark, suffix in MARKS.items() if _begins(file, mark)), ".csv")
    return ".json" if found == ".jsonl" and _spread(file) else found


def _spread(file: Path) -> bool:
    """Whether one object goes over several lines."""
    with file.open("rb") as opened:
        return not opened.readline(1 << 20).rstrip().endswith((b"}", b"]")) or not opened.readline(1)


def _begins(file: Path, mark: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(64).removeprefix(b"\xef\xbb\xbf").lstrip(b" \r\n").startswith(mark)
