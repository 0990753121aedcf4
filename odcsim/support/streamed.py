"""A JSON array that is parsed in batches, so that no more of it is held at a time.

By the standard library's own decoder: whatever json.loads takes is taken, NaN and long numbers too, which ijson's fast
parsers refuse.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from odcsim.errors import InputError
from odcsim.support import budget

BLOCK = 1 << 22  # characters
_BLANK = " \t\n\r"
_AFTER = tuple(_BLANK + ",]}:")
_ENDS = {"{": "},", "[": "],"}  # where an item ends, by what it begins with


class Streamed:
    """The text of one JSON value, from its beginning to its end."""

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
        found = self.peek()
        if not found or found not in expected:
            raise self._invalid(f"expected {' or '.join(expected)}")
        self._at += 1
        return found

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
        """As many items as the text holds, if they can be told apart by their ends: within an item, what lies before a
        comma leaves a bracket or a text open, and is not valid."""
        if len(self._text) - self._at < BLOCK // 2:
            self._more()
        first = self.peek()
        cut = self._text.rfind(_ends := _ENDS.get(first, ","), self._at) + len(_ends) - 1
        if not self._bulky or cut <= self._at:
            return []
        try:
            with _uncollected():
                items: list[Any] = json.loads(f"[{self._text[self._at : cut]}]")
        except (ValueError, RecursionError):
            self._bulky = False  # nor will it be told with less of the same text
            return []
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


@contextmanager
def _uncollected() -> Iterator[None]:
    """What is parsed has no circles: to look for some takes twice as long as to parse."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
