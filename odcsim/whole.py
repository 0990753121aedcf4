"""Files that are read whole, of which there may be no end: a pipe, a device, or a small one that swells."""

import gzip
import io
from pathlib import Path
from typing import BinaryIO

from odcsim.errors import InputError

SMALL = 2**26  # bytes of what somebody writes by hand, or a model or a profile
LARGE = 2**31  # bytes of what a program writes
_BLOCK = 1 << 20


def read_bytes(path: Path | str, most: int = SMALL) -> bytes:
    """A ValueError where there is more."""
    with Path(path).open("rb") as file:
        return _within(file, most)


def read_text(path: Path | str, most: int = SMALL, encoding: str = "utf-8") -> str:
    return read_bytes(path, most).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def inflated(packed: bytes, most: int = LARGE) -> bytes:
    """What gzip packed."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        return _within(file, most)


def _within(file: "BinaryIO | gzip.GzipFile", most: int) -> bytes:
    blocks, size = [], 0
    while block := file.read(_BLOCK):
        blocks.append(block)
        if (size := size + len(block)) > most:
            raise ValueError(f"more than {most:,} bytes")
    return b"".join(blocks)


def check_file(path: Path) -> None:
    """Refuse what has no end, or can be read but once: lengths are read line by line, and twice."""
    if not path.is_file():
        raise InputError("is no file but a pipe or a device", where=str(path), fix="save what it gives to a file")
