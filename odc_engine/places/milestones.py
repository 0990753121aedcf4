"""What a device's streams were given, by marks: whoever waits for the streams can say how far they have come.

A stream that waits for a mark which never comes would be waited for without end, and without a word.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any

from odc_engine.errors import EngineError

STILL = 60.0  # seconds in which no mark is reached
LOOK = 1e-4  # seconds between two looks: a host that waits shall leave the interpreter to others


class Milestones:
    """Of one device, whose thread gives and waits."""

    def __init__(self) -> None:
        self._ahead: dict[str, deque[Any]] = defaultdict(deque)  # marks that were not seen reached, by their lane
        self._reached: Counter[str] = Counter()

    def add(self, lane: str, mark: Any) -> None:
        self._ahead[lane].append(mark)

    def follow(self, streams: Iterable[Any]) -> None:
        """Return when all is done. Raise where nothing has moved for a while, and say where."""
        for stream in streams:
            since, before = time.monotonic(), -1
            while not stream.query():
                if (reached := self._looked()) != before:
                    since, before = time.monotonic(), reached
                elif time.monotonic() - since > STILL:
                    raise EngineError(f"streams stand still for {STILL:g} s: {self._told()}")
                time.sleep(LOOK)
            stream.synchronize()
        self._ahead.clear()
        self._reached.clear()

    def _looked(self) -> int:
        """How many marks are reached by now."""
        for lane, marks in self._ahead.items():
            while marks and marks[0].query():
                marks.popleft()
                self._reached[lane] += 1
        return self._reached.total()

    def _told(self) -> str:
        lanes = (
            f"{lane} has done {self._reached[lane]} of {self._reached[lane] + len(marks)}"
            for lane, marks in self._ahead.items()
        )
        return ", ".join(lanes) or "nothing was marked"
