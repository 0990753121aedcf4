"""Progress on stderr: a bar with the time left on a terminal, else a line for each piece."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def progress(what: str, pieces: Sequence[str]) -> Iterator[Callable[[str], None]]:
    """Gives a function to call with the name of each piece that is done."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=len(pieces))
            yield lambda name: bar.update(task, advance=1, description=f"{what}: {name} done")
        return
    start, count = time.monotonic(), 0

    def told(name: str) -> None:
        nonlocal count
        count += 1
        left = (time.monotonic() - start) / count * (len(pieces) - count)
        print(f"{what}: {name} done, {count} of {len(pieces)}, about {left:.0f} s left", file=sys.stderr, flush=True)

    yield told
