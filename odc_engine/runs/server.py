"""The process that imports torch once and forks the ranks: sixteen imports would take longer than a short run.

It is Python's fork server, which says nothing when it dies and waits forever while it is stopped.
"""

import multiprocessing as mp
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

from odc_engine.backends.aside import Aside
from odc_engine.backends.patience import LOOK, LOOK_UP
from odc_engine.errors import EngineError
from odcsim.errors import InputError

UP = 120.0  # seconds for the server to import torch and to fork every device, on a busy machine with a slow disk
WHOSE = "the process that starts devices"
CONTEXT = mp.get_context("forkserver")


def start() -> None:
    """Start the server, which ignores interrupts from the keyboard: they reach all processes of a terminal, and only
    this one acts."""
    # FSDP2 imports torch._dynamo at its first use.
    CONTEXT.set_forkserver_preload(["odc_engine.devices.process", "torch._dynamo"])
    multiprocessing.resource_tracker.ensure_running()  # by itself, for it unblocks what is blocked here
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        _reachable()
        multiprocessing.forkserver.ensure_running()
    except OSError as error:
        problem = f"{WHOSE} cannot be reached in the folder {multiprocessing.util.get_temp_dir()} ({error})"
        raise InputError(problem, fix="set TMPDIR to a folder with a short path, as /tmp") from None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _reachable() -> None:
    """Kill the server if its socket was deleted with other temporary files, which Python does not notice."""
    Path(multiprocessing.util.get_temp_dir()).mkdir(mode=0o700, exist_ok=True)
    address = getattr(multiprocessing.forkserver._forkserver, "_forkserver_address", None)
    if address and not multiprocessing.util.is_abstract_socket_namespace(address) and not Path(address).exists():
        kill()


def fork(starts: list[Callable[[], None]], limit: float) -> None:
    """Make the server fork ranks. Raises if it is gone, is stopped for `limit` seconds or does not answer.

    The remaining starts are then not performed, whatever has interrupted this.
    """
    left = list(reversed(starts))

    def every() -> None:
        while left:
            left.pop()()

    aside = Aside()
    done = aside.call(every)
    aside.end()
    halted = waited = 0.0
    try:
        while not wait([done], LOOK).done:
            waited += LOOK
            halted = halted + LOOK if is_stopped(pid()) else 0.0
            if halted > limit:
                raise EngineError(f"{WHOSE} (pid {pid()}) is stopped")
            if waited > max(UP, limit):
                raise EngineError(f"{WHOSE} (pid {pid()}) did not answer within {max(UP, limit):g} s")
        done.result()
    except (OSError, EOFError) as error:
        raise EngineError(died(LOOK_UP) or f"devices cannot be started ({error})") from None
    finally:
        left.clear()
        if not done.done() and not wait([done], LOOK).done:
            kill()  # whoever waits for its answer has it now
            wait([done], UP)


def pid() -> int | None:
    """Return the server's pid after its start, which Python keeps private."""
    found: int | None = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    return found


def died(within: float = 0.0) -> str:
    """Describe how the server ended, if it is gone or about to be: its pipes close some time before it ends.

    Python itself asks for its exit status when it starts another.
    """
    deadline = time.monotonic() + within
    while not (words := _died()) and time.monotonic() < deadline:
        time.sleep(within / 50)
    return words


def _died() -> str:
    server = pid()
    if server is None or not hasattr(os, "waitid"):
        return ""
    try:
        end = os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return f"{WHOSE} (pid {server}) is gone"
    if end is None:
        return ""
    if end.si_code == os.CLD_EXITED:
        return f"{WHOSE} (pid {server}) ended with status {end.si_status}"
    return f"{WHOSE} (pid {server}) was killed by {signal_name(end.si_status)}"


def stopped() -> str:
    """Describe a server that is stopped."""
    return f"{WHOSE} (pid {pid()}) is stopped" if is_stopped(pid()) else ""


def kill() -> None:
    """Kill the server. On Linux, all ranks that it has forked end with it."""
    server = pid()
    if server is None or died():
        return
    os.kill(server, signal.SIGKILL)
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)  # Python looks once whether it needs another


def is_stopped(process: int | None) -> bool:
    """Whether a process is stopped, if that can be seen."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
