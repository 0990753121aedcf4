"""What is packed by gzip or comes by a pipe lies as a plain file for as long as it is read."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odcsim.errors import InputError
from odcsim.support.inputs import GZIP, unpack
from odcsim.support.outputs import scratch

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
        return _unpack(path, folder / path.stem)
    copy, size = folder / "taken", 0
    with copy.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            size += len(block)
            if size > MOST:
                raise InputError(f"gives more than {MOST:,} bytes", where="stdin", fix="save it to a file")
            file.write(block)
    if _begins(copy, GZIP):
        copy = _unpack(copy, folder / "unpacked")
    # What came by a pipe has no name: its first bytes tell what it is, and else it is CSV.
    suffix = next((suffix for mark, suffix in MARKS.items() if _begins(copy, mark)), ".csv")
    if suffix == ".jsonl":
        with copy.open("rb") as file:  # one object may go over several lines
            whole = file.readline(1 << 20).rstrip().endswith((b"}", b"]"))
            suffix = ".jsonl" if whole and file.readline(1) else ".json"
    return copy.rename(folder / f"stdin{suffix}")


def _unpack(path: Path, copy: Path) -> Path:
    with path.open("rb") as given, unpack(given, path) as packed, copy.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    return copy


def _begins(file: Path, mark: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(64).removeprefix(b"\xef\xbb\xbf").lstrip(b" \r\n").startswith(mark)
