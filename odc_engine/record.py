"""Keeps what one device did in one minibatch, as times of its program's steps.

Steps are told apart by what happens in them: a layer's second gather of a microbatch is the backward's.
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
    """Told of everything that takes time beside compute."""

    def tick(self) -> float:
        """The present time, as `done` wants it."""

    def given(self, kind: str, unit: int) -> int:
        """A transfer was given to its lane; the number that `done` shall call it by. Unit -1: between nodes, of all
        units at once. Kind NODES: a unit that comes ahead of its use."""

    def done(self, number: int, asked: float, had: float) -> None:
        """From when on a transfer's lane could only wait or move bytes for it, and when it was done."""

    def span(self, kind: str) -> AbstractContextManager[None]:
        """A meeting or a publish, which the training loop itself waits for."""


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
    """Seconds, as the machine counts them."""

    def start(self) -> float:
        """A minibatch begins: the time now."""
        return time.perf_counter()

    def tick(self) -> float:
        """What `seconds` makes the present time of."""
        return time.perf_counter()

    def seconds(self, ticks: Floats) -> Floats:
        """Times of ticks, which may be not a number."""
        return ticks


class MinibatchRecorder:
    """Fills the times of one minibatch. Listens to the model's marks and to the transfers."""

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
        """The next step of this kind that has not happened yet; -1 where the program has none (left)."""
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
        """A microbatch begins. The engine has no constant of its own that could be told from compute."""
        self.microbatch = microbatch
        number, now = self._next("overhead", -1, microbatch), self.tick()
        self.done(number, now, now)

    def times(self, start: float) -> tuple[Floats, Floats]:
        """Times asked and had since `start`; steps that did not happen here pass in no time."""
        asked, had = self.clock.seconds(self.asked) - start, self.clock.seconds(self.had) - start
        before = self.program.previous_in_lane()
        for i, step in enumerate(self.program.steps):
            if np.isnan(had[i]):
                needs = [*step.after, *([before[i]] if before[i] >= 0 else [])]
                asked[i] = had[i] = max((had[n] for n in needs), default=0.0)
        return asked, had
