"""End ranks even if the process that forked them is gone: Python then reports them as ended."""

import contextlib
import multiprocessing.connection
import os
import signal
from typing import Any


class Handles:
    """Handles of processes (pidfds), which stay valid if a pid is reused. Empty if the system has none."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def start(self, process: Any) -> None:
        process.start()
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it has ended, or the kernel is older than Python
                self._open.append(os.pidfd_open(process.pid))

    def end(self, within: float) -> None:
        """Kill those that are alive, and wait up to `within` seconds for each."""
        for handle in self._open:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        while self._open:
            multiprocessing.connection.wait(self._open[-1:], within)
            os.close(self._open.pop())
