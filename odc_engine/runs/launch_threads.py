"""Start one thread per rank in this process. One failure ends the run, as in odc_engine.runs.launch."""

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from odc_engine.backends.threads import refuse_started
from odc_engine.backends.threads.memory import Team, ThreadMemory
from odc_engine.errors import EngineError
from odc_engine.places.place import HOST, Place
from odc_engine.runs.watch import END, GRACE, say
from odcsim.errors import InputError

Work = Callable[..., None]


def run(work: Work, devices: int, timeout: float, *args: Any, places: Sequence[Place] = ()) -> int:
    """Call `work(memory, *args)` on one thread per rank, each in its place. Returns 0 if all have succeeded."""
    refuse_started()
    before = torch.get_num_threads()
    team = Team(devices, timeout)
    try:
        ended = _ended(team, places or [HOST] * devices, lambda memory: _device(work, memory, args))
    finally:
        torch.set_num_threads(before)
    for rank in set(range(devices)) - set(ended):
        say(f"odc_engine: error: device {rank} still runs and is left behind")
    return 1 if len(ended) < devices else max(ended.values())


def _ended(team: Team, places: Sequence[Place], device: Callable[[ThreadMemory], int]) -> dict[int, int]:
    """Return each rank's exit code, without ranks that still run GRACE seconds after the first failure, or long
    after the first end: a thread cannot be stopped from outside."""
    codes: dict[int, int] = {}
    changed = threading.Condition()

    def thread(rank: int) -> None:
        code = device(ThreadMemory(team, rank, places[rank]))
        with changed:
            codes[rank] = code
            changed.notify_all()

    threads = [threading.Thread(target=thread, args=(d,), name=f"device {d}", daemon=True) for d in range(team.size)]
    for each in threads:
        each.start()
    with changed:
        try:
            changed.wait_for(lambda: codes)
            changed.wait_for(lambda: len(codes) == team.size or any(codes.values()), max(team.timeout, END))
        except KeyboardInterrupt:
            team.fail(list(range(team.size)), "interrupted")
            raise
        finally:
            if not changed.wait_for(lambda: len(codes) == team.size, GRACE):
                atexit.register(_leave, threads)
    return codes


def _leave(threads: list[threading.Thread]) -> None:
    """Exit the process while threads still compute: a thread that returned from torch meanwhile would abort it."""
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _device(work: Work, memory: ThreadMemory, args: tuple[Any, ...]) -> int:
    torch.set_num_threads(1)  # devices share the machine's cores; more threads would fight over them
    try:
        # Backward on the thread that asks for it, on a GPU as well.
        with memory.place.working(), torch.autograd.set_multithreading_enabled(False):
            work(memory, *args)
    except BaseException as error:
        memory.fail(error)
        expected = isinstance(error, EngineError | InputError)
        say(("" if expected else traceback.format_exc()) + f"odc_engine: error: device {memory.rank}: {error}")
        return 2 if isinstance(error, InputError) else 1
    return 0
