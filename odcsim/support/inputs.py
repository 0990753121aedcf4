"""Reading files that somebody gave: none is believed to have an end, to be no larger than it says, or to be whole.

JSON is parsed by the standard library's own decoder: whatever json.loads takes is taken, NaN and long numbers too,
which ijson's fast parsers refuse.
"""

import gc
import gzip
import io
import json
import math
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.support import budget

LINES = 8  # bytes that a byte of lines becomes, which are parsed one by one
GZIP = b"\x1f\x8b"
TIMES, SPARE = 100, 1 << 24  # lengths come to some ten times the packed file; a bomb to a thousand times
PIPED = 1 << 28  # bytes that a pipe may hold packed
BLOCK = 1 << 22  # characters of JSON
COPIES = 3  # of an array, with what it is checked by
_BYTES = 1 << 20  # that are read at a time
_BLANK = " \t\n\r"
_AFTER = tuple(_BLANK + ",]}:")
_ENDS = {"{": "},", "[": "],"}  # where an item ends, by what it begins with
_HEADS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LONGEST = 1 << 16  # bytes of a head; numpy takes ten thousand


@contextmanager
def reading(path: Path | str, *others: type[Exception], missing: str, expected: str) -> Iterator[None]:
    """What reading the file at `path` may raise becomes one line; `others` are errors of what takes it apart."""
    damages: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError, *others)
    try:
        with budget.bounded(path):
            yield
    except FileNotFoundError:
        raise InputError("no such file", where=str(path), fix=missing) from None
    except damages as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot be read ({reason})", where=str(path), fix=f"expected {expected}") from None


def read_bytes(path: Path | str, swells: int = budget.PARSED) -> bytes:
    """All bytes of a file. `swells`: how many bytes of memory one of them becomes."""
    blocks, size, most = [], 0, budget.most() // swells
    with Path(path).open("rb") as file:
        while block := file.read(_BYTES):
            blocks.append(block)
            if (size := size + len(block)) > most:
                raise budget.too_much(f"more than {budget.in_words(most)} of text that is read whole", path)
    return b"".join(blocks)


def read_text(path: Path | str, swells: int = budget.PARSED, encoding: str = "utf-8") -> str:
    return read_bytes(path, swells).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def read_stdin(swells: int = budget.PARSED) -> str:
    most = budget.most() // swells
    if len(text := sys.stdin.read(most + 1)) > most:
        raise budget.too_much(f"more than {most:,} characters", "stdin")
    return text


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
        while block := file.read(_BYTES):
            last = block.rfind(b"\n")
            begun = begun + len(block) if last < 0 else len(block) - last - 1
            if begun > most:
                raise budget.too_much(f"a line of more than {most:,} bytes", path)


class _Gunzip(io.RawIOBase):
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


def unpack(file: BinaryIO, path: Path) -> BinaryIO:
    """What gzip packed into the open `file`, whose errors name `path`."""
    return io.BufferedReader(_Gunzip(file, path), _BYTES)


@contextmanager
def text_of(path: Path) -> Iterator[TextIO]:
    """As UTF-8, whether gzip has packed it or not."""
    with path.open("rb") as file:
        packed = file.peek(len(GZIP))[: len(GZIP)] == GZIP
        raw = unpack(file, path) if packed else file
        with io.TextIOWrapper(raw, "utf-8-sig") as text:
            yield text


class JsonStream:
    """The text of one JSON value, from its beginning to its end. An array is parsed in batches, so that no more of it
    is in memory at a time."""

    def __init__(self, file: TextIO, where: str) -> None:
        self._file, self._where, self._text, self._at = file, where, "", 0
        self._bulky = True  # until a cut has been in the middle of an item

    def peek(self) -> str:
        """The next character that is no blank; nothing at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, expected: str) -> str:
        """One of these characters, which comes next."""
        character = self.peek()
        if not character or character not in expected:
            raise self._invalid(f"expected {' or '.join(expected)}")
        self._at += 1
        return character

    def value(self) -> Any:
        decode = json.JSONDecoder().raw_decode
        self.peek()
        while True:
            try:
                value, end = decode(self._text, self._at)
                length = end - self._at
                if self._text[end : end + 1] in _AFTER or not self._more():  # a number may go on
                    self._at += length
                    return value
            except RecursionError as error:
                raise self._invalid(type(error).__name__) from None
            except ValueError as error:
                if not self._more():
                    raise self._invalid(getattr(error, "msg", type(error).__name__)) from None

    def array(self) -> Iterator[list[Any]]:
        """Its items, in batches."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        going = ","
        while going == ",":
            yield self._bulk() or [self.value()]
            going = self.take(",]")

    def members(self) -> Iterator[str]:
        """The keys of an object; whoever asks takes each one's value before the next."""
        self.take("{")
        if self.peek() == "}":
            self.take("}")
            return
        going = ","
        while going == ",":
            if self.peek() != '"':
                raise self._invalid("expected a key")
            key: str = self.value()
            self.take(":")
            yield key
            going = self.take(",}")

    def end(self) -> None:
        if self.peek():
            raise self._invalid("Extra data")

    def _bulk(self) -> list[Any]:
        """As many items as the text has, if they can be told apart by their ends: within an item, what lies before a
        comma leaves a bracket or a text open, and is not valid."""
        if len(self._text) - self._at < BLOCK // 2:
            self._more()
        ends = _ENDS.get(self.peek(), ",")
        cut = self._text.rfind(ends, self._at) + len(ends) - 1
        if not self._bulky or cut <= self._at:
            return []
        collects = gc.isenabled()
        gc.disable()  # what is parsed has no circles: to look for some takes twice as long as to parse
        try:
            items: list[Any] = json.loads(f"[{self._text[self._at : cut]}]")
        except (ValueError, RecursionError):
            self._bulky = False  # nor will it be told with less of the same text
            return []
        finally:
            if collects:
                gc.enable()
        self._at = cut
        return items

    def _more(self) -> bool:
        if len(self._text) - self._at > budget.parsed():
            raise budget.too_much(f"a JSON value of more than {budget.parsed():,} characters", self._where)
        block = self._file.read(max(BLOCK, len(self._text) - self._at))
        self._text, self._at, self._bulky = self._text[self._at :] + block, 0, True
        return bool(block)

    def _invalid(self, reason: str) -> InputError:
        return InputError(f"is not valid JSON ({reason})", where=self._where, fix="check that the file is whole")


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


def read_header(file: Any, name: str) -> NumpyHeader:
    """What stands before the numbers of an NPY, however long it claims to be."""
    start = io.BytesIO(file.read(_LONGEST))
    read = _HEADS.get(npy.read_magic(start))
    if read is None:
        raise ValueError(f"'{name}' is no NPY of version 1 or 2")
    shape, fortran, dtype = read(start)
    if dtype.hasobject:
        raise ValueError(f"'{name}' holds objects")
    return NumpyHeader(shape, fortran, dtype, start.tell())


def read_pieces(file: Any, head: NumpyHeader, rows: int, name: str) -> Iterator[NDArray[Any]]:
    """What follows a header, so many rows at a time; of an array of several dimensions none, in its shape."""
    if len(head.shape) != 1:
        yield np.zeros([0] * len(head.shape), head.dtype)
        return
    for start in range(0, head.shape[0], rows):
        yield _read_numbers(file, min(rows, head.shape[0] - start), head.dtype, name)


def _read_numbers(file: Any, count: int, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    array = np.empty(count, dtype)
    buffer, size = array.view(np.uint8) if array.nbytes else array, 0
    while size < array.nbytes and (read := file.readinto(buffer[size:])):
        size += read
    if size < array.nbytes:
        raise ValueError(f"'{name}' is cut short")
    return array


class Archive(zipfile.ZipFile):
    """Arrays of an NPZ, each read when it is asked for, whole or in pieces.

    What is wrong with one is a ValueError, or one of zipfile's or zlib's own; what is too large an InputError.
    """

    def __init__(self, file: BinaryIO, where: object = "") -> None:
        super().__init__(file)
        self._where, self._bytes = where, 0
        self.files = [name.removesuffix(".npy") for name in self.namelist()]

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def shape(self, name: str) -> tuple[int, ...]:
        with self._member(name) as (_, head):
            return head.shape

    def __getitem__(self, name: str) -> NDArray[Any]:
        """All of it; what was asked for before is taken to be in memory still."""
        with self._member(name) as (member, head):
            self._bytes += head.size
            budget.check(COPIES * self._bytes, "arrays", self._where)
            array = _read_numbers(member, head.count, head.dtype, name)
        return array.reshape(head.shape, order="F" if head.fortran else "C")

    def pieces(self, name: str, rows: int) -> Iterator[NDArray[Any]]:
        with self._member(name) as (member, head):
            yield from read_pieces(member, head, rows, name)

    @contextmanager
    def _member(self, name: str) -> Iterator[tuple[Any, NumpyHeader]]:
        """A member where its numbers begin, and its header."""
        member_name = f"{name}.npy" if f"{name}.npy" in self.NameToInfo else name
        with self.open(member_name) as member:
            head = read_header(member, name)
            size = self.getinfo(member_name).file_size - head.at
            if min(head.shape, default=0) < 0 or head.size != size or (head.count and not head.dtype.itemsize):
                raise ValueError(f"'{name}' claims {head.size:,} bytes and holds {size:,}")
            member.seek(head.at)
            yield member, head
