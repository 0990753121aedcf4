"""Where a device's work is given to: the questions, and the answers of a processor, whose calls are done when they
return. `odc_engine.places.streams` answers them for GPUs, where calls are only given."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from odc_engine.decoder import marks
from odc_engine.places.lanes import DONE, Handle, Lane, ThreadLane
from odc_engine.record import Clock


def own(value: Any) -> Any:
    """What a device has from device 0 where it shares with nobody."""
    return value


class Place(ABC):
    """What a device's work is given to."""

    device: torch.device

    def working(self) -> AbstractContextManager[Any]:
        """Everything that the calling thread does inside computes here."""
        return nullcontext()

    @abstractmethod
    def mark(self) -> Handle:
        """Stands for all that was given to where the caller is: whoever checks it goes on after that."""

    @abstractmethod
    def finish(self) -> None:
        """Return when all that this device was given is done."""

    @abstractmethod
    def lane(self, name: str) -> Lane:
        """Does transfers beside compute."""

    @abstractmethod
    def clock(self, share: Callable[[Any], Any] = own) -> Clock:
        """Of a device's times. `share` gives everybody what device 0 brings."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Let so much time pass instead of computing."""


class Processor(Place):
    """The machine's."""

    device = torch.device("cpu")

    def mark(self) -> Handle:
        return DONE

    def finish(self) -> None:
        """Nothing is left."""

    def lane(self, name: str) -> Lane:
        return ThreadLane(name)

    def clock(self, share: Callable[[Any], Any] = own) -> Clock:  # noqa: ARG002 - processors have one clock
        return Clock()

    def wait(self, seconds: float) -> None:
        marks.wait(seconds)


HOST = Processor()


class Buffers:
    """Memory for whole units, used again and again.

    A gather writes on another stream than compute reads on, so memory comes with a mark that stands for its last
    reader. An allocator would hand it out again as soon as the reader is given, not when it is done.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[tuple[torch.Tensor, Handle]]] = {}

    def take(self, place: Place, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, Handle]:
        """n elements, all of this dtype in one pool, and what has to be done before they are written."""
        if free := self._free.get(n):
            return free.pop()
        # Fresh memory may have belonged to something that compute still reads.
        return torch.empty(n, dtype=dtype, device=place.device), place.mark()

    def give(self, buffer: torch.Tensor, last: Handle) -> None:
        self._free.setdefault(buffer.numel(), []).append((buffer, last))
