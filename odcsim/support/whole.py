"""Files of which there may be no end: a pipe, a device, or a small one that swells."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from odcsim.errors import InputError
from odcsim.support import budget

LINES = 8  # bytes that a byte of lines becomes, which are parsed one by one
GZIP = b"\x1f\x8b"
TIMES, SPARE = 100, 1 << 24  # lengths come to some ten times the packed file; a bomb to a thousand times
PIPED = 1 << 28  # bytes that a pipe may hold packed
_BLOCK = 1 << 20


def read_bytes(path: Path | str, swells: int = budget.PARSED) -> bytes:
    """`swells`: how many bytes one of them becomes."""
    with Path(path).open("rb") as file:
        return _within(file, path, swells)


def read_text(path: Path | str, swells: int = budget.PARSED, encoding: str = "utf-8") -> str:
    return read_bytes(path, swells).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def read_stdin(swells: int = budget.PARSED) -> str:
    most = budget.most() // swells
    if len(text := sys.stdin.read(most + 1)) > most:
        raise budget.too_much(f"more than {most:,} characters", "stdin")
    return text


def _within(file: BinaryIO, where: object, swells: int) -> bytes:
    blocks, size, most = [], 0, budget.most() // swells
    while block := file.read(_BLOCK):
        blocks.append(block)
        if (size := size + len(block)) > most:
            raise budget.too_much(f"more than {budget.in_words(most)} of text that is read whole", where)
    return b"".join(blocks)


class _Unpacked(io.RawIOBase):
    """What gzip packed, as far as it is no bomb."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        packed = path.stat().st_size if path.is_file() else PIPED
        self._file, self._where, self._left = gzip.GzipFile(fileobj=file), path, SPARE + TIMES * packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            size = self._file.readinto(buffer)
        except (OSError, EOFError, zlib.error) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            problem = f"cannot be unpacked ({reason[:100]})"
            raise InputError(problem, where=str(self._where), fix="copy the file again") from None
        self._left -= size
        if self._left < 0:
            problem = f"unpacks to more than {TIMES} times its size"
            raise InputError(problem, where=str(self._where), fix="unpack it yourself if you trust it")
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def unpacked(file: BinaryIO, path: Path) -> BinaryIO:
    return io.BufferedReader(_Unpacked(file, path), _BLOCK)


@contextmanager
def text_of(path: Path) -> Iterator[TextIO]:
    """As UTF-8, whether gzip has packed it or not."""
    with path.open("rb") as file:
        packed = file.peek(len(GZIP))[: len(GZIP)] == GZIP
        raw = unpacked(file, path) if packed else file
        with io.TextIOWrapper(raw, "utf-8-sig") as text:
            yield text


def check_file(path: Path) -> None:
    """Refuse what has no end, or can be read but once: lengths are read line by line, and twice."""
    if not path.is_file():
        raise InputError("is a pipe or a device, not a file", where=str(path), fix="save what it gives to a file")


def check_lines(path: Path) -> None:
    """Refuse a text with a line that is more than can be parsed."""
    most, begun = budget.parsed(), 0
    if path.stat().st_size <= most:
        return
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            last = block.rfind(b"\n")
            begun = begun + len(block) if last < 0 else len(block) - last - 1
            if begun > most:
                raise budget.too_much(f"a line of more than {most:,} bytes", path)
