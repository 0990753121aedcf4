"""Wait until all ranks have ended, and detect those that will not: after a failure, while stopped, or long after
others have ended."""

import multiprocessing.connection
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from odc_engine.backends.patience import LOOK_UP
from odc_engine.runs import server

GRACE = 3.0  # seconds for the others after one device has failed
END = 30.0  # and at least so many after one has come to its end: a busy machine takes long to take a process down
LOST = 255  # the exit code that Python gives a process of which the server has not said how it ended


def say(line: str) -> None:
    """Print to stderr in one write: ranks print at the same time, and some share this process."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Vigil:
    """`ends`: where each rank sends a word when its work is over, after which its process may go on. `timeout`:
    seconds that a peer may be silent; peers name a rank that is stopped, as long as there are any."""

    def __init__(self, processes: list[Any], ends: list[Connection], timeout: float) -> None:
        self._processes, self._ends = processes, dict(zip(ends, processes, strict=True))
        self._end, self._halt = max(timeout, END), timeout + 2 * GRACE
        self._over: list[str] = []  # whose work is
        self._now = 0.0  # seconds in which this process itself was not stopped
        self._since: dict[str, tuple[float, str]] = {}

    def code(self) -> int:
        """Return 0 if all have succeeded, 2 if one had bad input, else 1."""
        reason = ""
        while (alive := [p for p in self._processes if p.is_alive()]) and not reason:
            self._wait(alive)
            reason = next(self._reasons(alive), "")
        codes = [p.exitcode for p in self._processes]
        if any(code != 0 for code in codes) and (
            gone := server.died(LOOK_UP if LOST in codes else 0) or server.stopped()
        ):
            say(f"odc_engine: error: {gone}, and no device can end in order")
            return 1
        for process, code in zip(self._processes, codes, strict=True):
            if code is None:
                halted = f": stopped (pid {process.pid})" if server.is_stopped(process.pid) else ""
                say(f"odc_engine: error: {process.name} {reason}{halted} and was killed")
            elif code == LOST:
                say(f"odc_engine: error: {process.name} (pid {process.pid}) is gone with {server.WHOSE}")
            elif code < 0:
                name = server.signal_name(-code)
                say(f"odc_engine: error: {process.name} (pid {process.pid}) was killed by {name}")
        return 0 if not any(code != 0 for code in codes) else 2 if 2 in codes else 1

    def _wait(self, alive: list[Any]) -> None:
        """Wait for the next event, at most until the next look."""
        began = time.monotonic()
        sentinels = [process.sentinel for process in alive]
        for word in multiprocessing.connection.wait([*sentinels, *self._ends], timeout=LOOK_UP):
            if isinstance(word, Connection):
                self._over.append(self._ends.pop(word).name)
        self._now += min(time.monotonic() - began, 2 * LOOK_UP)

    def _reasons(self, alive: list[Any]) -> Iterator[str]:
        """Return why ranks that have not ended get no more time, if so."""
        if failed := [p.name for p in self._processes if p.exitcode]:
            if whom := self._long("failed", failed, GRACE):
                yield f"did not end within {GRACE:g} s of {whom}"
            return
        if whom := self._long("over", self._over[:1], self._end):
            yield f"did not end within {self._end:g} s of {whom}'s work"
        if self._long("stopped", [p.name for p in alive if server.is_stopped(p.pid)] or server.stopped(), self._halt):
            yield f"did not go on within {self._halt:g} s"

    def _long(self, what: str, whom: list[str] | str, limit: float) -> str:
        """Return the rank for which this was true first, if it has been true for so many seconds."""
        if not whom:
            self._since.pop(what, None)
            return ""
        since, first = self._since.setdefault(what, (self._now, whom if isinstance(whom, str) else ", ".join(whom)))
        return first if self._now - since >= limit else ""
