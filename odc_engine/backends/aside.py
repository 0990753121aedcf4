"""Calls that may never return, on one thread beside the caller's, which is left behind then.

The standard library's pools have such a thread too, but wait for it when the process ends.
"""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")
Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class Aside:
    """All calls come one after the other."""

    def __init__(self) -> None:
        self._calls = Calls()
        Thread(target=_serve, args=(self._calls,), daemon=True).start()

    def call(self, work: Callable[[], Result]) -> "Future[Result]":
        future: Future[Result] = Future()
        self._calls.put((future, work))
        return future

    def end(self) -> None:
        """Once all that was called is over, if ever."""
        self._calls.put(None)


def _serve(calls: Calls) -> None:
    while (called := calls.get()) is not None:
        _perform(*called)
        del called  # else what it returned lives until the next one


def _perform(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
