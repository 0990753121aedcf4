"""Places, lanes and clocks on a GPU: transfers are queued on streams and only streams wait for them; times are
events on streams, read when all is done.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from odc_engine.places.events import EventPool, StreamMark
from odc_engine.places.lanes import Handle, Lane
from odc_engine.places.milestones import Milestones
from odc_engine.places.place import HOST, Place
from odc_engine.record import Clock
from odcsim.program import NODES
from odcsim.timeline import Floats

_cuda: Any = torch.cuda  # torch has no types for most of it
HEAD_START = 2e-4  # seconds in which the host gives a kernel, and more


def present(device: torch.device) -> Any:
    """Return the caller's current stream on this GPU, which need not be the current GPU."""
    return _cuda.current_stream() if device.index is None else _cuda.current_stream(device)


class StreamHandle(Handle):
    """A transfer that is queued on its stream."""

    def __init__(self, done: StreamMark | None, device: torch.device) -> None:
        super().__init__()
        self._done_at, self._device = done, device

    @property
    def awaited(self) -> Handle | None:
        """FSDP2 lets streams wait for its own mark behind the transfer. Given more, it would hold the next gather back
        until this one is copied out, and so run one layer ahead instead of two."""
        return None if self._done_at is not None else self

    def check(self) -> None:
        """Make the current stream wait; the caller continues."""
        if self._done_at is not None:
            present(self._device).wait_event(self._done_at.event)


class StreamLane(Lane):
    """Transfers one after the other, on a stream of their own, or else on the stream that they are given on.

    FSDP2 calls for gathers on one stream and for pushes on another, beside the one that computes, and keeps the memory
    of a transfer until that stream has come past it. So what is left to do is to keep a lane's transfers in order. On
    a device without streams a transfer is done when it has been given.
    """

    def __init__(self, device: torch.device, stream: Any = None, heard: Callable[[Any], None] = lambda _: None) -> None:
        """`heard`: told of every transfer's mark."""
        self._device, self._stream, self._heard = device, stream, heard
        self._marks = device.type == "cuda" or stream is not None
        self._events = _events(device)
        self._last: StreamMark | None = None

    def give(self, transfer: Callable[[], None], after: Sequence[Handle] = ()) -> Handle:
        with nullcontext() if self._stream is None else _cuda.stream(self._stream):
            for needed in after:
                needed.check()
            self.drain()
            transfer()
            if self._marks:
                self._last = self._events.record()
                self._heard(self._last)
        return StreamHandle(self._last, self._device)

    def drain(self) -> None:
        if self._last is not None:
            present(self._device).wait_event(self._last.event)

    def close(self) -> None:
        """Nothing runs but streams."""


class StreamClock(Clock):
    """A tick is a mark on the present stream: when it is reached, not when it is made. Marks are read against the
    machine's clock, so that devices can be compared."""

    def __init__(self, device: torch.device, finish: Callable[[], None]) -> None:
        """`finish`: returns when all that the device was given is done."""
        self._device, self._finish = device, finish
        self._marks: list[Any] = []
        self._made: list[Any] = []  # of which each minibatch takes the first again, when the last one's are read
        self._taken = 0
        self._began = 0.0

    def start(self) -> float:
        self._finish()
        self._taken = 0
        self._marks = [self._mark()]
        self._finish()
        self._began = time.perf_counter()
        return self._began

    def tick(self) -> float:
        self._marks.append(self._mark())
        return float(len(self._marks) - 1)

    def seconds(self, ticks: Floats) -> Floats:
        self._finish()
        first = self._marks[0]
        at = [self._began + first.elapsed_time(mark) / 1000 for mark in self._marks]
        known = ~np.isnan(ticks)
        found = np.full(ticks.shape, np.nan)
        found[known] = np.array(at)[ticks[known].astype(np.int64)]
        return found

    def _mark(self) -> Any:
        if self._taken == len(self._made):
            self._made.append(_cuda.Event(enable_timing=True))
        event = self._made[self._taken]
        self._taken += 1
        event.record(present(self._device))
        return event


class WholeGpu(Place):
    """A GPU of a process's own, or what MPS gives it of one: work goes to the streams that FSDP2 chooses."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._events = device, _events(device)

    def mark(self) -> Handle:
        return StreamHandle(self._events.record(), self.device)

    def finish(self) -> None:
        _cuda.synchronize(self.device)

    def lane(self, name: str) -> Lane:
        """Transfers come with their streams, but for those between nodes, of which FSDP2 does not know."""
        return StreamLane(self.device, _cuda.Stream(self.device) if name == NODES else None)

    def clock(self) -> Clock:
        return StreamClock(self.device, self.finish)

    def wait(self, seconds: float) -> None:
        with _cuda.device(self.device):
            pause(seconds)


def _events(device: torch.device) -> EventPool:
    return EventPool(lambda: _cuda.Event(), None if device.index is None else partial(present, device))


def place_of(device: torch.device) -> Place:
    """Return the place of a process that has a device to itself."""
    return WholeGpu(device) if device.type == "cuda" else HOST


class StreamPlace(Place):
    """A GPU of a thread's own: a stream to compute on, and one for each lane."""

    def __init__(self, device: torch.device, streams: Sequence[Any]) -> None:
        self.device, self.streams = device, tuple(streams)
        self._lanes: dict[str, StreamLane] = {}
        self._milestones, self._events = Milestones(), _events(device)

    def working(self) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = _cuda.stream(self.streams[0])
        return entered

    def mark(self) -> Handle:
        mark = self._events.record()
        self._milestones.add("compute", mark)
        return StreamHandle(mark, self.device)

    def finish(self) -> None:
        self._milestones.follow(self.streams)

    def lane(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = StreamLane(self.device, self._spare(name), partial(self._milestones.add, name))
        return self._lanes[name]

    def _spare(self, name: str) -> Any:
        """Compute has the first."""
        if (number := 1 + len(self._lanes)) == len(self.streams):
            lanes = ", ".join(self._lanes)
            raise ValueError(f"a lane for {name} where {number} streams compute and do {lanes}")
        return self.streams[number]

    def clock(self) -> Clock:
        return StreamClock(self.device, self.finish)

    def wait(self, seconds: float) -> None:
        pause(seconds)


def lasted(move: Callable[[], object], repeats: int) -> float:
    """Seconds of one move of so many, by the GPU's own clock. A pause goes first, so that all calls lie on the stream
    when the clock is read: giving a kernel takes longer than a small one runs."""
    move()
    start, end = (_cuda.Event(enable_timing=True) for _ in range(2))
    pause(HEAD_START * repeats)
    start.record()
    for _ in range(repeats):
        move()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / repeats


def pause(seconds: float) -> None:
    """Let so much time pass on the current stream."""
    from odc_engine.kernels.calls import call
    from odc_engine.kernels.pause import pause as kernel

    call(kernel, (1,), round(1e9 * seconds), num_warps=1)
