"""Results that are asked for again, as many as their sizes leave room for: a number of entries bounds no memory."""

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_EVERY: list[Callable[[], None]] = []


def remembered(
    most: int, size: Callable[..., int], key: Callable[..., Any] = lambda *given: given
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Of a function whose results are for reading alone. `size(result, *given)` of all that are remembered comes to
    `most`, or to that of the last one alone; the one that was asked for longest ago is forgotten first."""

    def around(function: Callable[P, R]) -> Callable[P, R]:
        known: OrderedDict[Any, tuple[R, int]] = OrderedDict()
        held, lock = 0, Lock()

        @wraps(function)
        def asked(*given: P.args, **named: P.kwargs) -> R:
            nonlocal held
            about = key(*given), tuple(sorted(named.items()))
            with lock:
                if about in known:
                    known.move_to_end(about)
                    return known[about][0]
            found = function(*given, **named)
            with lock:
                if about not in known:  # another thread may have found it meanwhile
                    known[about] = found, size(found, *given)
                    held += known[about][1]
                while held > most and len(known) > 1:
                    held -= known.popitem(last=False)[1][1]
            return found

        def clear() -> None:
            nonlocal held
            with lock:
                known.clear()
                held = 0

        _EVERY.append(clear)
        return asked

    return around


def forget() -> None:
    """All of it, where memory has run out."""
    for clear in _EVERY:
        clear()
