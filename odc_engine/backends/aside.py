"""Run calls that may never return on a second thread, and abandon the thread if they do not.

The standard library's pools have such a thread too, but wait for it when the process ends.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from odc_engine.backends.base import Host
from odc_engine.backends.patience import LONGER, LOOK, Patience
from odc_engine.errors import PeerLost

Result = TypeVar("Result")
Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class Aside:
    """Runs all calls one after the other."""

    def __init__(self) -> None:
        self._calls = Calls()
        Thread(target=_serve, args=(self._calls,), daemon=True).start()

    def call(self, work: Callable[[], Result]) -> "Future[Result]":
        future: Future[Result] = Future()
        self._calls.put((future, work))
        return future

    def bounded(self, work: Callable[[], Result], host: Host, what: str) -> Result:
        """Return a call's result; stop waiting if a peer is gone or time is up."""
        done = self.call(work)
        patience, others = Patience(), [device for device in range(host.size) if device != host.rank]
        while not wait([done], LOOK).done:
            host.check()
            if over := patience.over(host, others):
                raise _late(host, others, what, over)
        return done.result()

    def end(self) -> None:
        """End the thread once all calls are over, if ever."""
        self._calls.put(None)


def _late(host: Host, others: list[int], what: str, over: float) -> Exception:
    if over < host.timeout:
        return host.silent(others, f"did not answer within {over:g} s")
    late = f"which did not end within {over:g} s; {LONGER}"
    return host.explain() or PeerLost(others, f"may keep this one waiting for {what}, {late}")


def _serve(calls: Calls) -> None:
    while (called := calls.get()) is not None:
        _perform(*called)
        del called  # else what it returned lives until the next one


def _perform(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
