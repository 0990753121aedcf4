"""Runs whose server of forks is killed while devices still read what they are told to do."""

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import EngineError
from odc_engine.runs import launch, server

DEVICES = 2
FIRST = 60.0  # seconds for a run whose server has to import torch


class Task:
    """What a device is told to do. It takes until the server is gone, and a while longer, to be read."""

    def __init__(self, *args: object) -> None:
        self.args = args

    def __reduce__(self):
        return _read, self.args


def _read(folder: Path, longer: float) -> Task:
    starter = os.getppid()
    (folder / str(os.getpid())).touch()
    while os.getppid() == starter:
        time.sleep(0.01)
    time.sleep(longer)
    (folder / f"{os.getpid()} was read").touch()
    return Task(folder, longer)


def meeting(memory: SharedMemory, *_: object) -> None:
    memory.meet(0)


def killed_in_the_middle(*args: object) -> bool:
    """Whether a run says that it has not come to its end for that."""
    try:
        return launch.run(meeting, DEVICES, FIRST, *args) == 1
    except EngineError as error:
        return "was killed by SIGKILL" in str(error)


def cut_off(folder: Path, longer: float) -> list[int]:
    """Devices that had not read their task when their server was killed."""

    def kill_once_all_read() -> None:
        while len(list(folder.iterdir())) < DEVICES:
            time.sleep(0.01)
        server.kill()

    folder.mkdir()
    assert launch.run(meeting, DEVICES, FIRST) == 0
    killer = threading.Thread(target=kill_once_all_read)
    killer.start()
    assert killed_in_the_middle(Task(folder, longer))
    killer.join()
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def living(pids: Iterable[int]) -> list[int]:
    """Without those that have ended and that nobody has asked how."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            found += [pid] if state not in "ZX" else []
    return found
