"""What is printed: without what a terminal would obey, in what its encoding has, and in silence when nobody reads."""

import os
import sys
from contextlib import suppress
from typing import TextIO


def printable(text: str) -> str:
    """In one line, and without what a terminal would obey: a message may quote a file."""
    return plain(" ".join(text.split()))


def plain(text: str, but: str = "") -> str:
    """Without what a terminal would obey, but for these characters."""
    return "".join(c if c.isprintable() or c in but else ascii(c)[1:-1] for c in text)


class PlainText:
    """A stream of text. Names and notes of files may hold anything; `steers`: colours are meant to reach the terminal,
    whose text is plain already."""

    def __init__(self, stream: TextIO, *, steers: bool = False) -> None:
        self.stream, self._steers = stream, steers
        self.encoding = stream.encoding or "utf-8"
        self.isatty, self.fileno, self.flush = stream.isatty, stream.fileno, stream.flush

    def write(self, text: str) -> int:
        if not self._steers and not all(line.isprintable() for line in text.split("\n")):
            text = plain(text, "\n")
        if not text.isascii():
            text = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        return self.stream.write(text)


def colours() -> PlainText:
    """Stdout for somebody who steers the terminal and prints plain text."""
    stream = sys.stdout
    return PlainText(stream.stream if isinstance(stream, PlainText) else stream, steers=True)


def standing() -> None:
    """Where a standard stream is closed, nobody reads: it must not become the first file that is opened."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+" if name == "stdin" else "w"))  # noqa: PTH123, SIM115 - while the process lives


def silence() -> None:
    """Nothing more can be printed: let the process end without a word on it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
