"""Take the times of a device's work without waiting for it."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

_cuda: Any = torch.cuda  # its stubs lack types
QUEUE = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds on a core, and in line for one


class Ticking(Protocol):
    device: str

    def mark(self) -> Any:
        """Return a mark for now; on a GPU, for when its stream gets here."""

    def ready(self, mark: Any) -> bool:
        """Whether the device has reached the mark."""

    def seconds(self, begin: Any, end: Any) -> float: ...

    def waited(self, begin: Any, end: Any) -> float | None:
        """Return for how long nothing was done in between; None if unknown."""


@dataclass(frozen=True, slots=True)
class ThreadMark:
    now: float
    busy: float  # seconds that this thread had a core, or stood in line for one


class ThreadTicking:
    """Times on a CPU. A thread that waits for other ranks sleeps: it neither has a core nor queues for one.

    With more threads than cores a thread also sleeps for the others of its own operator, so that nothing is reported
    then.
    """

    device = "cpu"

    def __init__(self) -> None:
        self._told = QUEUE.exists() and torch.get_num_threads() * _processes() <= (os.cpu_count() or 1)

    def mark(self) -> ThreadMark:
        line = int(QUEUE.read_text().split()[1]) * 1e-9 if self._told else 0.0
        return ThreadMark(time.perf_counter(), time.thread_time() + line)

    def ready(self, mark: ThreadMark) -> bool:  # noqa: ARG002
        return True

    def seconds(self, begin: ThreadMark, end: ThreadMark) -> float:
        return end.now - begin.now

    def waited(self, begin: ThreadMark, end: ThreadMark) -> float | None:
        return max(0.0, end.now - begin.now - (end.busy - begin.busy)) if self._told else None


def _processes() -> int:
    """Count this run's processes on this machine."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"])
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1


class StreamTicking:
    """Times on a GPU: events in its stream. Waiting for other ranks is a kernel like any other there, and not
    reported."""

    device = "cuda"

    def mark(self) -> Any:
        event = _cuda.Event(enable_timing=True)
        event.record()
        return event

    def ready(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) * 1e-3

    def waited(self, begin: Any, end: Any) -> None:  # noqa: ARG002
        return None


def ticking() -> Ticking:
    """Return the clock for the device that this process trains on."""
    return StreamTicking() if _cuda.is_available() and _cuda.is_initialized() else ThreadTicking()
