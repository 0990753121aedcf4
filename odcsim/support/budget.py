"""How much memory an input may take while it is read: one bound for all readers, in ODCSIM_MAX_MEMORY.

A small file may hold very much. What can be read in pieces is read so, whatever its size; what has to be held whole is
refused in one line where it is more than the bound. A variable and no flag, since it has to reach whoever reads: every
command, a notebook, the processes of a sweep, the launcher of an engine.

Readers ask before they read what they know the size of (`check`). What nobody can know before, as what a page of
Parquet unpacks to, the system refuses (`bounded`). What is computed once and kept has bounds of its own (`memoize`).
"""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from odcsim.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
VARIABLE, USUAL = "ODCSIM_MAX_MEMORY", 2 * 10**9
LEAST = 256 * 10**6
LIBRARIES = 128 * 10**6  # numpy, scipy and pyarrow, which may not be loaded yet
ROW = 200  # bytes of a row: what is read, what it is checked by, and what a command makes of it
PARSED = 32  # bytes of values that a byte of JSON or TOML may become: `[],` becomes 64 and a place in a list
TOKENIZED = 400  # bytes of what a tokenizer makes of a byte of text, and as much again
_UNITS = {"": 1} | {f"{p}{b}": 10 ** (3 * i) for i, p in enumerate("kmgt", 1) for b in ("", "b")}
_UNITS |= {f"{p}i{b}": 1024**i for i, p in enumerate("kmgt", 1) for b in ("", "b")}
_CLEAR: list[Callable[[], None]] = []  # of every function whose results are kept
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([a-z]*)", re.ASCII)


def most() -> int:
    """Bytes that a process may take while it reads an input."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return USUAL
    match = _SIZE.fullmatch(given.strip().lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if size < LEAST:
        raise InputError(f"{VARIABLE} is '{given[:40]}'", fix=f"write it as 8GB, at least {LEAST // 10**6}MB")
    return size


def rows() -> int:
    """How many rows are kept as they came."""
    return most() // ROW


def parsed() -> int:
    """How long a text may be that is parsed in one go."""
    return most() // PARSED


def text() -> int:
    """Bytes of a text whose tokens are counted."""
    return most() // TOKENIZED


def check(size: float, what: str, where: object) -> None:
    """Refuse what takes more than that."""
    if size > most():
        raise too_much(f"{what}, {in_words(size)} of memory", where, size)


def too_much(what: str, where: object, size: float = 0) -> InputError:
    more = in_words(max(4 * most(), 8 * 10**9, 2 * size))
    fix = f"if that is right, and this machine has more, set {VARIABLE}={more.replace(' ', '')}"
    return InputError(f"holds {what}, where {in_words(most())} is the most", where=str(where), fix=fix)


def in_words(size: float) -> str:
    """As `most` reads it again."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.3g} {name}" if size < 1e12 else f"{size / unit:,.0f} {name}"
    return f"{size:.0f} B"


@contextmanager
def bounded(where: object) -> Iterator[None]:
    """The system gives no more than the bound while the block runs, where this is the only thread of Python: another
    one's memory is none of a reader's business. Linux alone counts what a process writes to."""
    try:
        with ExitStack() as stack:
            if (data := _allowed_here()) is not None:
                import resource

                soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
                lower = min(limit for limit in (data, soft, hard) if limit != resource.RLIM_INFINITY)
                stack.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))
                resource.setrlimit(resource.RLIMIT_DATA, (lower, hard))
            yield
    except MemoryError:
        raise too_much("what does not fit into memory", where) from None


def limit(more: int) -> None:
    """For good, of all threads: in a process that does nothing but read or serve."""
    if Path("/proc/self/status").exists():
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (_now()[0] + more, hard))


def _allowed_here() -> int | None:
    """What this process' data may come to: that of now, and what is left of the bound."""
    if threading.active_count() > 1 or not Path("/proc/self/status").exists():
        return None
    data, resident = _now()
    return data + max(most() - max(resident, LIBRARIES) - LIBRARIES // 2, LIBRARIES // 2)


def _now() -> tuple[int, int]:
    """Bytes of data, and what of all lies in memory."""
    sizes = dict(re.findall(r"^(VmData|VmRSS):\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE))
    return 1024 * int(sizes["VmData"]), 1024 * int(sizes["VmRSS"])


def memoize(
    most: int, size: Callable[..., int], key: Callable[..., Any] = lambda *given: given
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep the results of a function, which are for reading alone, as many as their sizes leave room for: a number of
    entries bounds no memory. `size(result, *given)` of all that are kept comes to `most`, or to that of the last one
    alone; the one that was asked for longest ago is forgotten first."""

    def around(function: Callable[P, R]) -> Callable[P, R]:
        known: OrderedDict[Any, tuple[R, int]] = OrderedDict()
        total, lock = 0, threading.Lock()

        @wraps(function)
        def look_up(*given: P.args, **named: P.kwargs) -> R:
            nonlocal total
            about = key(*given), tuple(sorted(named.items()))
            with lock:
                if about in known:
                    known.move_to_end(about)
                    return known[about][0]
            result = function(*given, **named)
            with lock:
                if about not in known:  # another thread may have come to it meanwhile
                    known[about] = result, size(result, *given)
                    total += known[about][1]
                while total > most and len(known) > 1:
                    total -= known.popitem(last=False)[1][1]
            return result

        def clear() -> None:
            nonlocal total
            with lock:
                known.clear()
                total = 0

        _CLEAR.append(clear)
        return look_up

    return around


def forget() -> None:
    """All results that are kept, where memory has run out."""
    for clear in _CLEAR:
        clear()
