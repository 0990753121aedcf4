"""Work given to several streams at once, and when each was done with it. Threads of a CPU stand in for streams."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from odc_engine.places.streams import HEAD_START

Work = Callable[[], object]
GIVEN = 5e-3  # seconds in which threads have come to where they give their work


def ends(streams: Sequence[Any], works: Sequence[tuple[Work, int]]) -> list[float]:
    """Seconds from a common start until each stream has done its work so many times. A stream is None on a CPU."""
    kernels = sum(repeats for _, repeats in works)
    started = _ThreadsTogether() if streams[0] is None else _StreamsTogether(streams[0], kernels)
    ready = threading.Barrier(len(streams))
    found = [0.0] * len(streams)

    def give(i: int) -> None:
        work, repeats = works[i]
        with started.working(streams[i]):
            ready.wait()
            started.wait(streams[i])
            for _ in range(repeats):
                work()
            found[i] = started.seconds(streams[i])

    threads = [threading.Thread(target=give, args=(i,)) for i in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class _ThreadsTogether:
    """A thread begins when all are there."""

    def __init__(self) -> None:
        self._began = 0.0
        self._lock = threading.Lock()

    def working(self, _stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def wait(self, _stream: Any) -> None:
        with self._lock:
            self._began = self._began or time.perf_counter()

    def seconds(self, _stream: Any) -> float:
        return time.perf_counter() - self._began


class _StreamsTogether:
    """Streams wait for a mark behind a pause, in which all of their work is given: giving a kernel takes longer than a
    small one runs."""

    def __init__(self, first: Any, kernels: int) -> None:
        import torch

        from odc_engine.places.streams import pause

        self._torch: Any = torch
        torch.cuda.synchronize()
        self._start = self._mark()
        with torch.cuda.stream(first):
            pause(GIVEN + HEAD_START * kernels)
            self._start.record(first)

    def working(self, stream: Any) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = self._torch.cuda.stream(stream)
        return entered

    def wait(self, stream: Any) -> None:
        stream.wait_event(self._start)

    def seconds(self, stream: Any) -> float:
        end = self._mark()
        end.record(stream)
        stream.synchronize()
        return float(self._start.elapsed_time(end)) / 1000

    def _mark(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)
