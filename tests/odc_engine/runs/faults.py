"""Runs in which one device meets with a fault at a chosen place, and what is left to see afterwards.

The place is reached by changing the victim's own objects; nothing in the engine knows of it.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jobs import file_of, job_for

from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.devices.process import ProcessDevice
from odc_engine.job import Job
from odc_engine.runs import launch
from odcsim.schedule import flattened

VICTIM = 1
DEVICES = 3
NAN = "nan"  # a fault beside those that are signals


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    code: int
    lines: tuple[tuple[str, ...], ...]  # what each device said on stderr
    pids: tuple[int, ...]
    told: tuple[float, ...]  # seconds from the fault to each device's last word, 0 where it said nothing
    ended: float  # seconds from the fault to the end of the last process

    @property
    def survivors(self) -> dict[int, tuple[str, ...]]:
        return {d: lines for d, lines in enumerate(self.lines) if d != VICTIM}


def named(ended: Ended) -> None:
    """Each survivor has said one line, and that the victim is to blame."""
    for device, lines in ended.survivors.items():
        assert len(lines) == 1, lines
        assert f"device {device}: device {VICTIM} " in lines[0], lines


def run(work: Callable, folder: Path, *args, timeout: float = 30.0, devices: int = DEVICES) -> Ended:
    """Call `work(memory, folder, *args)` on each device."""
    folder.mkdir()
    code = launch.run(_heard, devices, timeout, folder, work, args)
    end = time.time()
    fault = folder / "fault"
    struck = float(fault.read_text()) if fault.exists() else end
    logs = [folder / f"device{d}" for d in range(devices)]
    lines = tuple(tuple(log.read_text().splitlines()) for log in logs)
    told = tuple(log.stat().st_mtime - struck if log.stat().st_size else 0.0 for log in logs)
    pids = tuple(int((folder / f"pid{d}").read_text()) for d in range(devices))
    return Ended(code, lines, pids, told, end - struck)


def _heard(memory: SharedMemory, folder: Path, work: Callable, args: tuple) -> None:
    """With stderr in a file of its own."""
    log = os.open(folder / f"device{memory.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    (folder / f"pid{memory.rank}").write_text(str(os.getpid()))
    memory.meet(MAIN)
    work(memory, folder, *args)


def training(memory: SharedMemory, folder: Path, job: Job, place: str, fault: int | str) -> None:
    """One good minibatch, then the fault in the next one."""
    device = ProcessDevice(job, memory.rank, memory)
    device.gathered(device.minibatch(0))
    if memory.rank == VICTIM:
        PLACES[place](device, lambda: strike(folder, fault))
    for number in range(1, len(job.schedules)):
        device.gathered(device.minibatch(number))
    device.close()


def strike(folder: Path, fault: int | str) -> None:
    (folder / "fault").write_text(str(time.time()))
    if fault != NAN:
        os.kill(os.getpid(), fault)
        time.sleep(0.01)  # the process may run on a little before the signal arrives


def in_forward(device: ProcessDevice, fault: Callable[[], None]) -> None:
    device.model.layers[1].register_forward_hook(lambda *_: fault())


def in_backward(device: ProcessDevice, fault: Callable[[], None]) -> None:
    def on_output(_module, _args, output):
        output.register_hook(lambda _: fault())

    device.model.layers[0].register_forward_hook(on_output)


def holding_a_lock(device: ProcessDevice, fault: Callable[[], None]) -> None:
    memory = device.memory

    def try_lock(*where, really=memory.try_lock) -> bool:
        got = really(*where)
        if got and where[0] != VICTIM:
            fault()
        return got

    memory.try_lock = try_lock


def holding_the_queue(device: ProcessDevice, fault: Callable[[], None]) -> None:
    really = device.memory.peers.take
    device.memory.peers.take = lambda: (fault(), really())[1]


def having_taken(device: ProcessDevice, fault: Callable[[], None]) -> None:
    really = device.memory.take
    device.memory.take = lambda: (really(), fault())[0]


def in_meeting(device: ProcessDevice, fault: Callable[[], None], room: int, *, before: bool) -> None:
    memory, skipped = device.memory, [0]

    def meet(where: int, really=memory.meet) -> None:
        # The first is that at a minibatch's start.
        skipped[0] += where == room
        now = where == room and skipped[0] > 1
        if now and before:
            fault()
        really(where)
        if now:
            fault()

    memory.meet = meet


def not_finite(device: ProcessDevice, fault: Callable[[], None]) -> None:
    """In the second microbatch, from layer 1 downwards."""
    calls = [0]

    def spoiled(gradient):
        calls[0] += 1
        if calls[0] < 2:
            return gradient
        fault()
        return gradient * float("nan")

    def on_output(_module, _args, output):
        output.register_hook(spoiled)

    device.model.layers[1].register_forward_hook(on_output)


PLACES = {
    "forward": in_forward,
    "backward": in_backward,
    "lock": holding_a_lock,
    "before a meeting": partial(in_meeting, room=MAIN, before=True),
    "after a meeting": partial(in_meeting, room=MAIN, before=False),
    "before a transfer": partial(in_meeting, room=COMM, before=True),
    "not finite": not_finite,
    "holding the queue": holding_the_queue,
    "an entry taken": having_taken,
}


def job(sync: str = "on-demand", backend: str = "shm", timeout: float = 30.0) -> Job:
    counts = (2, 3, 1) if sync == "on-demand" else (2, 2, 2)
    return replace(job_for(file_of(counts, counts, counts), sync, backend), timeout=timeout)


def queued_job(timeout: float = 30.0) -> Job:
    """The victim has nothing of its own, and so takes at once."""
    whole = job(timeout=timeout)
    parts = [(s, *s.devices) for s in whole.schedules]
    schedules = (s.dealt(flattened((a[:1], (), c)), flattened(((*a[1:], *b),))) for s, a, b, c in parts)
    return replace(whole, schedules=tuple(schedules))


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends in that time."""
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
