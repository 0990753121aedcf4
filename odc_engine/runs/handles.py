"""Devices that are ended though the process that has forked them is gone: Python takes them for ended then."""

import contextlib
import multiprocessing.connection
import os
import signal
from typing import Any


class Handles:
    """Of processes, by which they are found whoever has their numbers later. Without any where the system has none."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def start(self, process: Any) -> None:
        process.start()
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it has ended, or the kernel is older than Python
                self._open.append(os.pidfd_open(process.pid))

    def end(self, within: float) -> None:
        """Kill those that live, and wait for each that long."""
        for handle in self._open:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        while self._open:
            multiprocessing.connection.wait(self._open[-1:], within)
            os.close(self._open.pop())
