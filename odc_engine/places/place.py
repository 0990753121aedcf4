"""Where one device of the threads backend works. Here a CPU, whose calls are done when they return;
`streams.StreamPlace` is the same on a group of a GPU's SMs, where calls are only given."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from odc_engine.decoder import marks
from odc_engine.places.lanes import DONE, Handle, Lane
from odc_engine.record import Clock


class Place:
    """What a device's work is given to. `streams.StreamPlace` answers each question for a GPU."""

    device = torch.device("cpu")

    def working(self) -> AbstractContextManager[Any]:
        """Everything that the calling thread does inside computes here."""
        return nullcontext()

    def mark(self) -> Handle:
        """Stands for all that was given to where the caller is: whoever checks it goes on after that."""
        return DONE

    def finish(self) -> None:
        """Return when all that this device was given is done."""

    def lane(self, name: str) -> Lane:
        """Does transfers beside compute."""
        return Lane(name)

    def clock(self, share: Callable[[Any], Any]) -> Clock:  # noqa: ARG002 - processors have one clock
        """`share` gives everybody what device 0 brings."""
        return Clock()

    def wait(self, seconds: float) -> None:
        """Let so much time pass instead of computing."""
        marks.wait(seconds)


HOST = Place()


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
