"""Lanes and times on a GPU: transfers are put on streams and nobody waits for them but other streams, and times are
marks on streams, read when all is done.

Not run on a GPU yet.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from odc_engine.lanes import Handle, Lane
from odc_engine.record import Clock
from odcsim.timeline import Floats

_cuda: Any = torch.cuda  # torch has no types for most of it


class StreamHandle(Handle):
    """A transfer that is on its stream."""

    def __init__(self, done: Any) -> None:
        super().__init__()
        self._event = done

    def check(self) -> None:
        """Let the stream that asks wait; the caller goes on."""
        if self._event is not None:
            _cuda.current_stream().wait_event(self._event)


class StreamLane(Lane):
    """Transfers one after the other, on the stream that they are given on.

    FSDP2 calls for gathers on one stream and for pushes on another, beside the one that computes, and keeps the memory
    of a transfer until that stream has come past it. So what is left to do is to keep a lane's transfers in order. On
    a device without streams a transfer is done when it has been given.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._last_event: Any = None

    def give(self, transfer: Callable[[], None]) -> Handle:
        if self._last_event is not None:
            _cuda.current_stream().wait_event(self._last_event)
        transfer()
        if self._on_gpu:
            self._last_event = _cuda.current_stream().record_event()
        return StreamHandle(self._last_event)

    def drain(self) -> None:
        if self._last_event is not None:
            _cuda.current_stream().wait_event(self._last_event)

    def close(self) -> None:
        """Nothing runs but streams."""


class StreamClock(Clock):
    """A tick is a mark on the present stream: when it is reached, not when it is made. Marks are read against the
    machine's clock, so that devices can be compared."""

    def __init__(self) -> None:
        self._marks: list[Any] = []
        self._began = 0.0

    def start(self) -> float:
        _cuda.synchronize()
        self._marks = [self._mark()]
        _cuda.synchronize()
        self._began = time.perf_counter()
        return self._began

    def tick(self) -> float:
        self._marks.append(self._mark())
        return float(len(self._marks) - 1)

    def seconds(self, ticks: Floats) -> Floats:
        _cuda.synchronize()
        first = self._marks[0]
        at = [self._began + first.elapsed_time(mark) / 1000 for mark in self._marks]
        known = ~np.isnan(ticks)
        found = np.full(ticks.shape, np.nan)
        found[known] = np.array(at)[ticks[known].astype(np.int64)]
        return found

    def _mark(self) -> Any:
        event = _cuda.Event(enable_timing=True)
        event.record()
        return event
