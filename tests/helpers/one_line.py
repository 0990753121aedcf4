"""What may be refused, but then in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from odcsim.errors import InputError


@contextmanager
def read_or_refused(begin: str = "") -> Iterator[None]:
    line = begin
    try:
        yield
    except InputError as error:
        line = str(error)
    assert line.startswith(begin)
    assert "\n" not in line
