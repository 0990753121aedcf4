"""A command in a group of processes of its own, under a limit: nothing of it is left, and a hang leaves evidence.

When time is up, all its Python processes are told to say where they are (SIGABRT, under faulthandler), then all is
killed. The same goes for a command whose asker is killed, but for the evidence: a guard sees to that.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
LAST_WORDS = 3.0  # seconds in which a group that was told to abort may say where it is
BEAT = 5.0


def run(
    command: Sequence[str],
    log: Path,
    seconds: float,
    env: Mapping[str, str],
    beat: Callable[[], None] = lambda: None,
) -> int | None:
    """The exit status, None where time was up. All that it says goes into the log. `beat` is called now and then."""
    guarded = [sys.executable, "-S", "-E", str(GUARD), str(os.getpid()), *command]
    with log.open("wb") as out:
        # A group of its own, so that processes which the command starts can be ended with it.
        process = subprocess.Popen(
            guarded, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=dict(env)
        )
    try:
        return _waited(process, time.monotonic() + seconds, beat)
    finally:
        _kill(process.pid, signal.SIGKILL)
        process.wait()


def _waited(process: "subprocess.Popen[bytes]", deadline: float, beat: Callable[[], None]) -> int | None:
    while (left := deadline - time.monotonic()) > 0:
        try:
            return process.wait(min(BEAT, left))
        except subprocess.TimeoutExpired:
            beat()
    _kill(process.pid, signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(LAST_WORDS)
    return None


def _kill(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
