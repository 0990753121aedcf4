"""A lane runs transfers in the order in which they were given, overlapped with compute: on a thread here, on streams
of a GPU in `odc_engine.places.streams.StreamLane`."""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch.distributed as dist


class Handle(dist.Work):  # FSDP2 waits on nothing else
    """A transfer under way. `wait` returns when it is done, or raises its error."""

    def __init__(self) -> None:
        super().__init__()
        self._done = threading.Event()
        self.error: BaseException | None = None

    @property
    def awaited(self) -> "Handle | None":
        """Return what FSDP2 waits for before it uses the result."""
        return self

    def end(self, error: BaseException | None) -> None:
        """Mark it as done or failed."""
        self.error = error
        self._done.set()

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002 - the signature is torch's
        self.check()
        return True

    def check(self) -> None:
        """Make later work of the caller wait for it."""
        self._done.wait()
        if self.error is not None:
            raise self.error


DONE = Handle()  # stands for what is done when it has been given
DONE.end(None)


class Lane(ABC):
    """Runs transfers in order."""

    @abstractmethod
    def give(self, transfer: Callable[[], None], after: Sequence[Handle] = ()) -> Handle:
        """Start a transfer once the handles in `after` are done."""

    @abstractmethod
    def drain(self) -> None:
        """Make later compute of the caller wait for everything given so far."""

    @abstractmethod
    def close(self) -> None:
        """Stop accepting transfers."""


class ThreadLane(Lane):
    """Runs transfers on a thread of its own. The first error ends the lane: later transfers fail with the same
    error."""

    def __init__(self, name: str) -> None:
        self._given: queue.SimpleQueue[tuple[Callable[[], None], Handle] | None] = queue.SimpleQueue()
        self._last: Handle | None = None
        self._thread = threading.Thread(target=self._work, name=f"odc-{name}", daemon=True)
        self._thread.start()

    def give(self, transfer: Callable[[], None], after: Sequence[Handle] = ()) -> Handle:
        for needed in after:
            needed.wait()
        handle = Handle()
        self._last = handle
        self._given.put((transfer, handle))
        return handle

    def drain(self) -> None:
        if self._last is not None:
            self._last.check()

    def close(self) -> None:
        self._given.put(None)
        self._thread.join(timeout=5)

    def _work(self) -> None:
        failed: BaseException | None = None
        while (item := self._given.get()) is not None:
            transfer, handle = item
            if failed is None:
                try:
                    transfer()
                except BaseException as error:
                    failed = error
            del transfer, item  # what it holds
            handle.end(failed)
