"""What is kept of a sweep while it runs: a line for each point, added when the point is done and never changed.

A process that is killed leaves its last line torn at worst. Lines that are not whole are left out, so that their points
are worked on again; every other line is valid, whoever wrote it and when. Lines are added at the file's end, each in
one piece, so that not even two processes at once lose any.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from odcsim.decide.sweeps import unlike
from odcsim.decide.sweeps.columns import holds, order
from odcsim.decide.sweeps.point import DIGITS
from odcsim.decide.sweeps.work import Done
from odcsim.errors import InputError
from odcsim.support.files import check_writable, reading, telling

SUFFIX = ".points"
FORMAT = "odcsim points"
_HEAD = json.dumps({"format": FORMAT, "version": 1}) + "\n"
_KEY = re.compile(rf"[0-9a-f]{{{DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Line:
    """Where the rows of a point are, and their place in a table."""

    path: Path
    begin: int
    order: tuple[Any, ...]
    refused: str


def beside(output: Path, number: int = 1, of: int = 1) -> Path:
    """Where a sweep keeps its points; each share of one its own."""
    share = "" if of == 1 else f".{number}-of-{of}"
    return output.with_name(f"{output.name}{share}{SUFFIX}")


def all_beside(output: Path) -> list[Path]:
    """What the sweep itself and all shares of it have kept so far."""
    known = re.compile(re.escape(output.name) + r"(\.\d+-of-\d+)?" + re.escape(SUFFIX))
    return sorted(path for path in output.parent.iterdir() if known.fullmatch(path.name))


def lines(paths: Iterable[Path]) -> dict[str, Line]:
    """Every point that is in one of these files, and where. A file that is none of ours is refused."""
    found: dict[str, Line] = {}
    for path in paths:
        with (
            reading(path, missing="give files that a sweep has kept", expected="points of a sweep"),
            path.open("rb") as file,
        ):
            _check_head(file, path)
            for begin, result in _results(file):
                first = found.setdefault(result.key, Line(path, begin, order(result.rows[0]), result.refused))
                if (first.path, first.begin) != (path, begin) and (kept := _read(first)):
                    unlike.check(kept, first.path, result, path)
    return found


def _read(line: Line) -> Done | None:
    with line.path.open("rb") as file:
        file.seek(line.begin)
        return _result(file.readline())


def results(found: Mapping[str, Line]) -> Iterator[Done]:
    """All of them in the order of a table: that of what was asked, however the sweep was run."""
    opened: dict[Path, BinaryIO] = {}
    try:
        for key, line in sorted(found.items(), key=lambda each: each[1].order):
            if line.path not in opened:
                with reading(line.path, missing="it was there: run it again", expected="points of a sweep"):
                    opened[line.path] = line.path.open("rb")
            opened[line.path].seek(line.begin)
            result = _result(opened[line.path].readline())
            if result is None or result.key != key:
                raise InputError("has changed while it was read", where=str(line.path), fix="run it again")
            yield result
    finally:
        for file in opened.values():
            file.close()


class Keeper:
    """Adds to the file of one process. Nothing is written before the first point that could run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[Done] = []
        self._file: BinaryIO | None = None

    @property
    def has_begun(self) -> bool:
        return self._file is not None

    def add(self, result: Done) -> None:
        self._waiting.append(result)
        if self._file is not None or not result.refused:
            self.flush()

    def flush(self) -> None:
        """Have all lines in the file, which other processes read and a killed one leaves."""
        if not self._waiting:
            return
        self._file = self._file or _opened(self.path)
        content = [{"point": result.key, "rows": list(result.rows)} for result in self._waiting]
        self._file.write(b"".join(json.dumps(line, allow_nan=False).encode() + b"\n" for line in content))
        self._file.flush()
        self._waiting.clear()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _opened(path: Path) -> BinaryIO:
    """To add to, after a whole line."""
    check_writable(path)
    with telling(path):
        file = path.open("ab")
    file.write(_lacking(path))
    return file


def _lacking(path: Path) -> bytes:
    """The rest of its head, or the end of a line that was torn."""
    with path.open("rb") as file:
        if len(head := _check_head(file, path)) < len(_HEAD):
            return _HEAD[len(head) :].encode()
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"


def _check_head(file: BinaryIO, path: Path) -> bytes:
    """As much of it as is there: somebody may just have begun, or been killed as soon."""
    head = file.readline(len(_HEAD))
    if not _HEAD.encode().startswith(head):
        raise InputError("exists, and holds no points of a sweep", where=str(path), fix="move it, or name another")
    return head


def _results(file: BinaryIO) -> Iterator[tuple[int, Done]]:
    begin = file.tell()
    for line in file:
        if (result := _result(line)) is not None:
            yield begin, result
        begin += len(line)


def _result(line: bytes) -> Done | None:
    """None where the line is not whole."""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        content = json.loads(line, parse_constant=_no_number)
        key, rows = content["point"], content["rows"]
        if _KEY.fullmatch(key) and rows and all(_is_row(row, key) for row in rows):
            return Done(key, tuple(rows))
    return None


def _is_row(row: dict[str, Any], key: str) -> bool:
    return row["point"] == key and all(holds(name, value) for name, value in row.items())


def _no_number(word: str) -> Any:
    raise ValueError(word)
