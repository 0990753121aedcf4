"""Marks on streams, made once and used again. Making one takes about as long as giving a small kernel."""

from collections.abc import Callable
from typing import Any


class EventPool:
    """`make`: an event of whatever GPU it is recorded on. `stream`: the present one, where the caller's present GPU may
    be another."""

    def __init__(self, make: Callable[[], Any], stream: Callable[[], Any] | None = None) -> None:
        self._make, self._stream = make, stream
        self._free: list[Any] = []

    def record(self) -> "StreamMark":
        """A mark on the present stream."""
        event = self._free.pop() if self._free else self._make()
        event.record() if self._stream is None else event.record(self._stream())
        return StreamMark(event, self._free)


class StreamMark:
    """Whoever holds it may wait for it. Its event is used again when nobody does: streams that were told to wait have
    noted how far, and do not look at it any more."""

    def __init__(self, event: Any, free: list[Any]) -> None:
        self.event, self._free = event, free

    def query(self) -> bool:
        return bool(self.event.query())

    def __del__(self) -> None:
        self._free.append(self.event)
