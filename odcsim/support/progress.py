"""Progress on stderr: a bar with the time left on a terminal; else a line for each named piece, or one now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

WHOLE = 100  # pieces of work of which shares are told
_SHOWN: list[Any] = []  # the bar that a terminal shows, once for each piece of work in it
QUIET = 60  # seconds without a line, where pieces have no names


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Gives a function to call for each of `total` pieces of work that is done, with its name where it has one."""
    if sys.stderr.isatty():
        with _bar(what, total) as done:
            yield done
        return
    start, count = time.monotonic(), 0
    last = start

    def tell(name: str = "") -> None:
        nonlocal count, last
        count, now = count + 1, time.monotonic()
        if name or now - last >= QUIET:
            last, left = now, (now - start) / count * (total - count)
            of = f"{name} done, {count}" if name else f"{count}"
            print(f"{what}: {of} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True)

    yield tell


@contextmanager
def shares(what: str) -> Iterator[Callable[[float], None]]:
    """Gives a function to call with the share of the work that is done."""
    count = 0
    with progress(what, WHOLE) as advance:

        def done(share: float) -> None:
            nonlocal count
            while count < min(WHOLE, int(share * WHOLE)):
                count += 1
                advance("")

        yield done


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    if _SHOWN:  # work within other work has a line below it: two displays would write over each other
        within: Any = nullcontext(_SHOWN[0])
    else:
        console = Console(stderr=True)
        within = Progress(*columns, TextColumn("after"), TimeElapsedColumn(), console=console, transient=True)
    with within as bar:
        _SHOWN.append(bar)
        task = bar.add_task(what, total=total)
        try:
            yield lambda name="": bar.update(task, advance=1, description=f"{what}: {name} done" if name else what)
        finally:
            _SHOWN.pop()
            if _SHOWN:
                bar.remove_task(task)
