"""Progress on stderr: a bar with the time left on a terminal; else a line for each piece that has a name."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Gives a function to call for each of `total` pieces of work that is done, with its name where it has one."""
    with _bar(what, total) if sys.stderr.isatty() else _lines(what, total) as done:
        yield lambda name="": done(name)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, advance=1, description=f"{what}: {name} done" if name else what)


@contextmanager
def _lines(what: str, total: int) -> Iterator[Callable[[str], None]]:
    start, count = time.monotonic(), 0

    def done(name: str) -> None:
        nonlocal count
        count += 1
        if name:
            left = (time.monotonic() - start) / count * (total - count)
            print(f"{what}: {name} done, {count} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True)

    yield done
