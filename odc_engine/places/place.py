"""The interface of places, where a rank's work runs, and its version for CPUs, where a call is done when it returns.
`odc_engine.places.streams` has the one for GPUs, where calls are only queued."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from odc_engine.decoder import marks
from odc_engine.places.lanes import DONE, Handle, Lane, ThreadLane
from odc_engine.record import Clock


class Place(ABC):
    """Where a rank's work runs."""

    device: torch.device

    def working(self) -> AbstractContextManager[Any]:
        """Run compute of the calling thread here."""
        return nullcontext()

    @abstractmethod
    def mark(self) -> Handle:
        """Return a mark after all work given so far; whoever checks it continues after that."""

    @abstractmethod
    def finish(self) -> None:
        """Return when all work of this rank is done."""

    @abstractmethod
    def lane(self, name: str) -> Lane:
        """Return a lane for transfers beside compute."""

    @abstractmethod
    def clock(self) -> Clock:
        """Return the clock of this rank's times."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let so much time pass instead of computing."""


class Processor(Place):
    """The machine's CPU."""

    device = torch.device("cpu")

    def mark(self) -> Handle:
        return DONE

    def finish(self) -> None:
        """Do nothing: all calls are done."""

    def lane(self, name: str) -> Lane:
        return ThreadLane(name)

    def clock(self) -> Clock:
        return Clock()

    def wait(self, seconds: float) -> None:
        marks.wait(seconds)


HOST = Processor()


class Buffers:
    """Memory for whole units, used again and again.

    A gather writes on another stream than the one on which compute reads, so that each buffer has a mark of its last
    reader. An allocator would reuse it as soon as the reader is queued, not when it is done.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[tuple[torch.Tensor, Handle]]] = {}

    def take(self, place: Place, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, Handle]:
        """Return n elements, all of this dtype from one pool, and what to wait for before writing to them."""
        if free := self._free.get(n):
            return free.pop()
        # Fresh memory may have belonged to something that compute still reads.
        return torch.empty(n, dtype=dtype, device=place.device), place.mark()

    def give(self, buffer: torch.Tensor, last: Handle) -> None:
        self._free.setdefault(buffer.numel(), []).append((buffer, last))
