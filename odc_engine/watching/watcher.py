"""Watches a loop of somebody's own.

    watcher = odc_engine.Watcher("runs/watched")
    ...
        with watcher.microbatch(lengths):  # of the samples in it
            model(batch).backward()
        ...
        watcher.step()  # after the optimizer's

What lies between a step and the next one's first microbatch, such as an evaluation, is not counted.
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
    """A step that is not over, or whose device has not come so far."""

    begin: float
    first: Any
    collected: float
    before: float = 0.0  # seconds of a loader, ahead of `first`
    loader: float = 0.0
    spans: list[_Span] = field(default_factory=list)
    number: int = 0
    collector: float = 0.0
    last: Any = None


class Watcher:
    """Lengths and seconds of this rank's microbatches into `folder`. Rank 0 says a line `every` so many steps, or 0."""

    def __init__(self, folder: Path | str, *, every: int = 20, trainer: str = "own loop") -> None:
        self._folder, self._every, self._trainer = Path(folder), every, trainer
        self._file: TextIO | None = None
        self._teller: Teller | None = None
        self._clock: Ticking | None = None
        self._step: _Open | None = None
        self._left: deque[_Open] = deque()
        self._number = 0
        self._aside = 0.0  # seconds of a loader that the next step begins with
        self._over = False
        self._collections = _Collections()
        atexit.register(self.close)

    def open(self) -> None:
        """Begins the file, or refuses. From here on nothing that fails in watching ends the run."""
        if self._file is None and not self._over:
            rank, ranks = lines.place()
            about = lines.header(rank, ranks, self._trainer, self._ticks.device)
            home, self._file = lines.opened(self._folder, rank, about)
            if rank == 0 and self._every:
                self._teller = Teller(home, ranks, lambda words: print(words, file=sys.stderr, flush=True))

    @contextmanager
    def safely(self) -> Iterator[None]:
        """What fails in it ends the watching, with a line."""
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
        """Around a forward and a backward pass. `computed`: tokens with padding, where there is some."""
        held = tuple(int(n) for n in lengths)
        self.begin_microbatch(lambda: (held, computed or sum(held)))
        try:
            yield
        except BaseException:
            self.drop_microbatch()
            raise
        self.end_microbatch()

    def loaded(self, loader: Iterable[Item]) -> Iterator[Item]:
        """What a loader gives, where its seconds shall be counted, too."""
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
        """A step of the optimizer is over: its line is written, on a GPU as soon as it has come so far."""
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
        """What has begun is none: it is forgotten."""
        self._step, self._aside = None, 0.0

    def note_loader(self, seconds: float) -> None:
        """Of the step that has begun, else of the next one."""
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
        """The open one holds this, too."""
        if self._step:
            self._step.spans[-1].holdings.append(holding)

    def end_microbatch(self) -> None:
        """Of the one that is open, if one is."""
        with self.safely():
            if self._step and self._step.spans and self._step.spans[-1].end is None:
                self._step.spans[-1].end = self._ticks.mark()

    def drop_microbatch(self) -> None:
        """The open one has failed, and is none."""
        if self.in_microbatch and self._step:
            self._step.spans.pop()
        if self._step and not self._step.spans:
            self.drop_step()

    @property
    def in_microbatch(self) -> bool:
        return bool(self._step and self._step.spans and self._step.spans[-1].end is None)

    def close(self) -> None:
        """Writes what is left. At the latest when the program ends."""
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
    """Seconds of Python's garbage collection."""

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
