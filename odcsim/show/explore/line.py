"""Whatever goes wrong is a line of the page: a page that says nothing looks like one that thinks."""

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from odcsim.support.budget import forget
from odcsim.support.command import line_of
from odcsim.support.printing import printable

T = TypeVar("T")
LETTERS = 500
OURS = "an internal error of odcsim; see the terminal that it runs in"


def or_line(answer: Callable[[], T], instead: Callable[[str], T]) -> T:
    """The answer, or what is shown `instead` of it, made of a line that says why."""
    try:
        return answer()
    except Exception as error:
        if isinstance(error, MemoryError):
            forget()  # so that the next question has room
        if not (line := line_of(error)):
            traceback.print_exc(file=sys.stderr)
            line = f"{type(error).__name__}: {OURS}"
        return instead(printable(line)[:LETTERS])
