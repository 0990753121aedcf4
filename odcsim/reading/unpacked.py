"""What is packed by gzip or comes by a pipe lies as a plain file for as long as it is read."""

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from odcsim.errors import InputError

PIPE, PACKED = "-", ".gz"
TIMES, SPARE = 100, 1 << 24  # lengths come to some ten times the packed file; a bomb to a thousand times
MOST = 2**33  # bytes that come by a pipe
GZIP = b"\x1f\x8b"
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
    with TemporaryDirectory(prefix="odcsim-") as folder:
        copy = _copy(path, Path(folder))
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
        _within(sys.stdin.buffer, file, MOST, f"gives more than {MOST:,} bytes", "save it to a file", "stdin")
    if _begins(taken, GZIP):
        taken = _unpacked(taken, folder / "unpacked")
    return taken.rename(folder / f"stdin{_suffix(taken)}")


def _unpacked(path: Path, copy: Path) -> Path:
    most = SPARE + TIMES * path.stat().st_size
    try:
        with gzip.open(path) as packed, copy.open("wb") as file:
            problem = f"unpacks to more than {TIMES} times its size"
            _within(packed, file, most, problem, "unpack it yourself if it is no bomb", str(path))
    except (OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot be unpacked ({reason[:100]})", where=str(path), fix="copy the file again") from None
    return copy


def _within(taken: "BinaryIO | gzip.GzipFile", file: BinaryIO, most: int, problem: str, fix: str, where: str) -> None:
    size = 0
    while block := taken.read(1 << 20):
        size += len(block)
        if size > most:
            raise InputError(problem, where=where, fix=fix)
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
