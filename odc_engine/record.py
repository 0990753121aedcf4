"""Record what one rank did in one minibatch, as times of its program's steps.

A step is identified by what it does: a layer's second gather in a microbatch belongs to backward.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import numpy as np

from odcsim.program import EVERY, NODES, Program
from odcsim.timeline import Floats


class Recorder(Protocol):
    """Receives all events besides compute that take time."""

    def tick(self) -> float:
        """Return the present time, in the form that `done` takes."""

    def given(self, kind: str, unit: int) -> int:
        """Note a transfer that was given to its lane. Returns the number to pass to `done`.

        Unit -1: all units at once, between nodes. Kind NODES: a unit that its node fetches.
        """

    def done(self, number: int, asked: float, had: float) -> None:
        """Note a transfer's end. `asked`: since when its lane could only wait for it or move its bytes."""

    def span(self, kind: str) -> AbstractContextManager[None]:
        """Time a synchronization or a publish, for which the training loop itself waits."""


class Silence:
    """A recorder that records nothing."""

    def tick(self) -> float:
        return 0.0

    def given(self, kind: str, unit: int) -> int:  # noqa: ARG002
        return 0

    def done(self, number: int, asked: float, had: float) -> None: ...

    def span(self, kind: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()


class Clock:
    """The machine's clock, in seconds."""

    def start(self) -> float:
        """Begin a minibatch, and return the present time."""
        return time.perf_counter()

    def tick(self) -> float:
        """Return a mark of the present time, which `seconds` converts."""
        return time.perf_counter()

    def seconds(self, ticks: Floats) -> Floats:
        """Convert ticks to times, which may be NaN."""
        return ticks


class MinibatchRecorder:
    """Fills in the times of one minibatch, from the model's marks and the transfers."""

    def __init__(self, program: Program, clock: Clock | None = None) -> None:
        self.program, self.clock = program, clock or Clock()
        self.microbatch = 0
        self._open = -1, 0.0
        shape = len(program.steps)
        self.asked, self.had = np.full(shape, np.nan), np.full(shape, np.nan)
        self._steps: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for i, step in enumerate(program.steps):
            what = program.durations[step.duration][0] if step.kind == "compute" else step.kind
            what = NODES if step.lane == NODES else what
            self._steps[what, step.unit, step.microbatch].append(i)

    def _next(self, what: str, unit: int, microbatch: int) -> int:
        """Return the next step of this kind that has not happened yet; -1 if the program has none (left)."""
        left = self._steps.get((what, unit, microbatch))
        return left.pop(0) if left else -1

    def begin(self, phase: str, unit: int) -> None:
        self._open = self._next(phase, unit, self.microbatch), self.tick()

    def end(self, phase: str, unit: int) -> None:  # noqa: ARG002 - phases follow each other, one open at a time
        self.done(*self._open, self.tick())

    def tick(self) -> float:
        return self.clock.tick()

    def given(self, kind: str, unit: int) -> int:
        return self._next(kind, unit, self.microbatch if unit >= 0 and kind != NODES else EVERY)

    def done(self, number: int, asked: float, had: float) -> None:
        if number >= 0:
            self.asked[number], self.had[number] = asked, had

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        number = self._next(kind, -1, EVERY)
        asked = self.tick()
        yield
        self.done(number, asked, self.tick())

    def open_microbatch(self, microbatch: int) -> None:
        """Begin a microbatch. Its overhead step takes no time: the engine cannot tell overhead from compute."""
        self.microbatch = microbatch
        number, now = self._next("overhead", -1, microbatch), self.tick()
        self.done(number, now, now)

    def times(self, start: float) -> tuple[Floats, Floats]:
        """Return the times since `start` at which steps were asked for and done; steps that did not happen here take
        no time."""
        asked, had = self.clock.seconds(self.asked) - start, self.clock.seconds(self.had) - start
        before = self.program.previous_in_lane()
        for i, step in enumerate(self.program.steps):
            if np.isnan(had[i]):
                needs = [*step.after, *([before[i]] if before[i] >= 0 else [])]
                asked[i] = had[i] = max((had[n] for n in needs), default=0.0)
        return asked, had
