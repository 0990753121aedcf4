"""Watch your own training loop.

    watcher = odc_engine.Watcher("runs/watched")
    ...
        with watcher.microbatch(lengths):  # of its samples
            model(batch).backward()
        ...
        watcher.step()  # after optimizer.step()

Time between a step and the next one's first microbatch, such as an evaluation, is not counted.
"""

import atexit
import gc
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from odc_engine.watching import lines
from odc_engine.watching.batches import Holding
from odc_engine.watching.telling import Teller
from odc_engine.watching.ticking import Ticking, ticking

Item = TypeVar("Item")


@dataclass(slots=True, eq=False)
class _Span:
    holdings: list[Holding]
    begin: Any
    end: Any = None


@dataclass(slots=True, eq=False)
class _Open:
    """A step that is not over, or that the GPU has not finished."""

    begin: float
    first: Any
    collected: float
    before: float = 0.0  # seconds of the data loader before `first`
    loader: float = 0.0
    spans: list[_Span] = field(default_factory=list)
    number: int = 0
    collector: float = 0.0
    last: Any = None


class Watcher:
    """Write lengths and seconds of this rank's microbatches to `folder`. Rank 0 prints a summary every `every`
    steps; 0 prints none."""

    def __init__(self, folder: Path | str, *, every: int = 20, trainer: str = "own loop") -> None:
        self._folder, self._every, self._trainer = Path(folder), every, trainer
        self._file: TextIO | None = None
        self._teller: Teller | None = None
        self._clock: Ticking | None = None
        self._step: _Open | None = None
        self._left: deque[_Open] = deque()
        self._number = 0
        self._aside = 0.0  # seconds of the data loader for the next step
        self._over = False
        self._collections = _Collections()
        atexit.register(self.close)

    def open(self) -> None:
        """Create the file, or raise. After this, no error in watching ends the run."""
        if self._file is None and not self._over:
            rank, ranks = lines.place()
            about = lines.header(rank, ranks, self._trainer, self._ticks.device)
            home, self._file = lines.opened(self._folder, rank, about)
            if rank == 0 and self._every:
                self._teller = Teller(home, ranks, lambda words: print(words, file=sys.stderr, flush=True))

    @contextmanager
    def safely(self) -> Iterator[None]:
        """Stop watching at an error, and print it."""
        try:
            yield
        except Exception as error:
            self._over, self._step = True, None
            self._left.clear()
            with suppress(OSError, ValueError):  # stderr may be closed
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                print(f"odc_engine.watch: stops watching: {said}", file=sys.stderr, flush=True)
            self.close()

    @contextmanager
    def microbatch(self, lengths: Sequence[int], computed: int | None = None) -> Iterator[None]:
        """Time a forward and a backward pass. `computed`: tokens with padding, if there is any."""
        held = tuple(int(n) for n in lengths)
        self.begin_microbatch(lambda: (held, computed or sum(held)))
        try:
            yield
        except BaseException:
            self.drop_microbatch()
            raise
        self.end_microbatch()

    def loaded(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Yield the loader's batches, and count its seconds."""
        them = iter(loader)
        while True:
            since = time.perf_counter()
            try:
                item = next(them)
            except StopIteration:
                return
            self.note_loader(time.perf_counter() - since)
            yield item

    def step(self, number: int | None = None) -> None:
        """End an optimizer step: its line is written, on a GPU as soon as its work is done."""
        self._number = self._number + 1 if number is None else number
        if (step := self._step) is None or not step.spans:
            self._step = None
            return
        self.end_microbatch()
        with self.safely():
            step.number, step.last = self._number, self._ticks.mark()
            step.collector = self._collections.seconds - step.collected
            self._left.append(step)
            self._step = None
            self._write()
            if self._teller and self._every and self._number % self._every == 0:
                self._teller.tell()

    def begin_step(self) -> None:
        if self._step is None and not self._over:
            self.open()
            with self.safely():
                self._step = _Open(time.time() - self._aside, self._ticks.mark(), self._collections.seconds)
                self._step.before = self._step.loader = self._aside
                self._aside = 0.0

    def drop_step(self) -> None:
        """Forget the step that has begun."""
        self._step, self._aside = None, 0.0

    def note_loader(self, seconds: float) -> None:
        """Add loader seconds to the current step, or to the next one."""
        if self._step:
            self._step.loader += seconds
        else:
            self._aside += seconds

    def begin_microbatch(self, holding: Holding) -> None:
        self.begin_step()
        self.end_microbatch()
        with self.safely():
            if self._step:
                self._step.spans.append(_Span([holding], self._ticks.mark()))

    def widen_microbatch(self, holding: Holding) -> None:
        """Add samples to the open microbatch."""
        if self._step:
            self._step.spans[-1].holdings.append(holding)

    def end_microbatch(self) -> None:
        """End the open microbatch, if there is one."""
        with self.safely():
            if self._step and self._step.spans and self._step.spans[-1].end is None:
                self._step.spans[-1].end = self._ticks.mark()

    def drop_microbatch(self) -> None:
        """Forget the open microbatch, which has failed."""
        if self.in_microbatch and self._step:
            self._step.spans.pop()
        if self._step and not self._step.spans:
            self.drop_step()

    @property
    def in_microbatch(self) -> bool:
        return bool(self._step and self._step.spans and self._step.spans[-1].end is None)

    def close(self) -> None:
        """Write what is left. Called at the latest when the program ends."""
        atexit.unregister(self.close)
        self._collections.close()
        with self.safely():
            while self._left and self._file and not self._file.closed:
                self._left[0].last.synchronize()
                self._write()
        if self._file:
            with suppress(OSError):  # of what could not be written it has said so
                self._file.close()

    @property
    def _ticks(self) -> Ticking:
        if self._clock is None:
            self._clock = ticking()
        return self._clock

    def _write(self) -> None:
        while self._left and self._ticks.ready(self._left[0].last):
            line = self._line(self._left.popleft())
            assert self._file is not None
            lines.put(self._file, line)

    def _line(self, step: _Open) -> dict[str, Any]:
        seconds = self._ticks.seconds
        return {
            "step": step.number,
            "begin": round(step.begin, 6),
            "seconds": round(step.before + seconds(step.first, step.last), 6),
            "loader": round(step.loader, 6),
            "collector": round(step.collector, 6),
            "microbatches": [self._told(step, span) for span in step.spans],
        }

    def _told(self, step: _Open, span: _Span) -> dict[str, Any]:
        held = [holding() for holding in span.holdings]
        told: dict[str, Any] = {"lengths": [n for lengths, _ in held for n in lengths]}
        told["computed"] = sum(computed for _, computed in held)
        told["begin"] = round(step.before + self._ticks.seconds(step.first, span.begin), 6)
        told["seconds"] = round(self._ticks.seconds(span.begin, span.end), 6)
        if (waited := self._ticks.waited(span.begin, span.end)) is not None:
            told["waited"] = round(waited, 6)
        return told


class _Collections:
    """Measures the seconds of Python's garbage collection."""

    def __init__(self) -> None:
        self.seconds, self._since = 0.0, 0.0
        gc.callbacks.append(self._hear)

    def _hear(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._since = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._since

    def close(self) -> None:
        if self._hear in gc.callbacks:
            gc.callbacks.remove(self._hear)
