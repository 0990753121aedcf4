"""Live processes on several machines, started as torchrun starts them, and what becomes of them when a machine fails.

As `pool.Pool`, whose server of forks is theirs too: importing torch for each would take longer than their tests.
"""

import ctypes
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from machines import CARD, Machine, Machines
from pool import START, TIMEOUT, Pool, Pools, serve

PORT = 29500  # each machine has all ports to itself


@dataclass(frozen=True)
class Place:
    """Of one process among all."""

    machine: Machine
    rank: int
    size: int
    local_rank: int
    here: int
    master: str

    def environment(self) -> dict[str, str]:
        """torchrun's, and the card that reaches the others."""
        own = {"RANK": self.rank, "LOCAL_RANK": self.local_rank, "GROUP_RANK": self.machine.number}
        all_ = {"WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.here, "MASTER_PORT": PORT}
        told = {name: str(value) for name, value in (own | all_).items()}
        return told | {"MASTER_ADDR": self.master, "GLOO_SOCKET_IFNAME": CARD, "OMP_NUM_THREADS": "1"}


def places(machines: Sequence[Machine], here: Sequence[int]) -> list[Place]:
    """So many processes on each machine, ranks in their order."""
    pairs = [(machine, local, count) for machine, count in zip(machines, here, strict=True) for local in range(count)]
    master = machines[0].address
    return [Place(m, rank, len(pairs), local, count, master) for rank, (m, local, count) in enumerate(pairs)]


@dataclass(frozen=True)
class Fate:
    """What became of a process."""

    code: int | None  # its exit status, minus a signal's number; None: it had not ended
    words: str  # its last line on stderr
    seconds: float  # until it had ended, from the fault on


class MachinePool(Pool):
    """`here`: processes on each machine. A failed call ends all of them, and the next one starts new machines."""

    def __init__(self, *here: int) -> None:
        super().__init__(sum(here))
        self.here = here
        self.machines: Machines | None = None
        self.left: list[str] = []  # in what processes of a machine share, after those that met with a fault

    def fates(
        self,
        work: Callable[..., Any],
        *args: Any,
        fault: Callable[[Machines], None],
        folder: Path,
        limit: float,
        stopped: Collection[int] = (),
    ) -> list[Fate]:
        """Call `work(rank, strike, *args)` in processes of its own, which end as programs do. Where a process calls
        `strike`, the fault happens, and all but it go on; seconds count from there, `limit` at most. Nobody waits for
        the end of those that the fault has `stopped`."""
        self.stop()
        try:
            self.start(_once, folder)
            self.tell(work, args)
            if not wait(self._pipes, START + limit):
                raise TimeoutError("nobody has come to the place of the fault")
            assert self.machines is not None
            fault(self.machines)
            struck = time.monotonic()
            ends = self._ends(struck + limit, stopped)
            self.left = [path.name for machine in self.machines.machines for path in machine.shared()]
            words = [_last_line(folder / f"stderr{rank}") for rank in range(self.devices)]
            return [Fate(code, said, at - struck) for (code, at), said in zip(ends, words, strict=True)]
        finally:
            self.stop()

    def _ends(self, deadline: float, stopped: Collection[int]) -> list[tuple[int | None, float]]:
        """How each process has ended, and when."""
        found: dict[int, float] = {}
        waiting = {process.sentinel: rank for rank, process in enumerate(self._processes) if rank not in stopped}
        while left := {one: rank for one, rank in waiting.items() if rank not in found}:
            ready = wait(list(left), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            found |= {left[one]: time.monotonic() for one in ready}
        for rank in found:
            self._processes[rank].join()
        codes = [process.exitcode for process in self._processes]
        return [(code, found.get(rank, deadline)) for rank, code in enumerate(codes)]

    def start(self, *how: Any) -> None:
        self.machines = Machines(len(self.here))
        for place in places(self.machines.machines, self.here):
            self.begin(_there, place, *how or (_serve,))

    def stop(self) -> None:
        if self.machines is not None:
            self.machines.close()
            self.machines = None
        super().stop()


def _there(pipe: Connection, place: Place, program: Callable[..., None], *more: Any) -> None:
    place.machine.enter()
    os.environ.update(place.environment())
    program(pipe, place, *more)


def _meet_others() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=2 * TIMEOUT))


def _serve(pipe: Connection, place: Place) -> None:
    _meet_others()
    serve(pipe, place.rank)


def _once(pipe: Connection, place: Place, folder: Path) -> None:
    """A program that ends when its work does, or by an error."""
    log = os.open(folder / f"stderr{place.rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    _meet_others()
    work, args = pickle.loads(pipe.recv_bytes())
    code = 0
    try:
        work(place.rank, lambda: pipe.send_bytes(b"now"), *args)
    except Exception:
        traceback.print_exc()
        code = 1
    ctypes.pythonapi.Py_Exit(code)  # a process of multiprocessing's would leave out what may hang at a program's end


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "")


MachinePools = partial(Pools, MachinePool)  # a pool for each number of processes on each machine that tests ask for


def before(owner: Any, name: str, fault: Callable[[], None]) -> None:
    """The next call of a method happens behind this."""
    really = getattr(owner, name)

    def call(*args: Any, **how: Any) -> Any:
        setattr(owner, name, really)
        fault()
        return really(*args, **how)

    setattr(owner, name, call)
