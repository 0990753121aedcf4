"""How much memory an input may take while it is read: one bound for all readers, in ODCSIM_MAX_MEMORY.

A small file may hold very much. What can be read in pieces is read so, whatever its size; what has to be held whole is
refused in one line where it is more than the bound. A variable and no flag, since it has to reach whoever reads: every
command, a notebook, the processes of a sweep, the launcher of an engine.

Readers ask before they hold what they know the size of (`check`). What nobody can know before, as what a page of
Parquet unpacks to, the system refuses (`bounded`).
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odcsim.errors import InputError

VARIABLE, USUAL = "ODCSIM_MAX_MEMORY", 2 * 10**9
LEAST = 256 * 10**6
LIBRARIES = 128 * 10**6  # numpy, scipy and pyarrow, which may not be loaded yet
ROW = 200  # bytes of a row: what is read, what it is checked by, and what a command makes of it
PARSED = 32  # bytes of values that a byte of JSON or TOML may become: `[],` becomes 64 and a place in a list
TOKENIZED = 400  # bytes of what a tokenizer makes of a byte of text, and as much again
_UNITS = {"": 1} | {f"{p}{b}": 10 ** (3 * i) for i, p in enumerate("kmgt", 1) for b in ("", "b")}
_UNITS |= {f"{p}i{b}": 1024**i for i, p in enumerate("kmgt", 1) for b in ("", "b")}
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
        with _limited(_allowed_here()):
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
    told = dict(re.findall(r"^(VmData|VmRSS):\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE))
    return 1024 * int(told["VmData"]), 1024 * int(told["VmRSS"])


@contextmanager
def _limited(data: int | None) -> Iterator[None]:
    if data is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lower = min(limit for limit in (data, soft, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (lower, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
