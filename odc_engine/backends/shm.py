"""Processes of one machine that share memory: the default transport, and the one every other is compared with.

Locks are byte ranges of an arena's file (open file description locks): the kernel drops them when their holder dies.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.base import PeerMemory
from odc_engine.backends.files import WAY_OUT, Mapped, agree, share, unmap
from odc_engine.backends.peers import Peers
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

RETRY = 50e-6  # seconds between tries for a lock that another device holds
_SETLK = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)


class SharedMemory(PeerMemory):
    """`timeout`: seconds after which a peer that does not come to a meeting, or holds a lock, is reported.

    Every device makes one, at the same time. Meetings work before there is an arena.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = 60.0) -> None:
        self.group, self.timeout = group, timeout
        self.peers = Peers(group, timeout)
        self.rank, self.size = self.peers.rank, self.peers.size
        self._files: list[Mapped] = []
        self._arenas: list[Tensor] = []

    def allocate(self, nbytes: int) -> None:
        # Device 0 asks for all, before any has taken its part.
        agree(self.group, _no_room(nbytes * self.size) if self.rank == 0 else None)
        self._files = share(self.group, nbytes)
        self._arenas = [torch.frombuffer(file.memory, dtype=torch.uint8) for file in self._files]

    def view(self, device: int) -> Tensor:
        return self._arenas[device]

    @contextmanager
    def lock(self, device: int, start: int, stop: int) -> Iterator[None]:
        if not self._try_lock(device, fcntl.F_WRLCK, start, stop):
            self._wait_for_lock(device, start, stop)
        try:
            yield
        finally:
            self._try_lock(device, fcntl.F_UNLCK, start, stop)

    def _wait_for_lock(self, device: int, start: int, stop: int) -> None:
        deadline = time.monotonic() + self.timeout
        while not self._try_lock(device, fcntl.F_WRLCK, start, stop):
            self.check()
            if time.monotonic() > deadline:
                raise self._holding(device, start, stop)
            time.sleep(RETRY)

    def _holding(self, device: int, start: int, stop: int) -> PeerLost:
        """The kernel does not tell who holds a lock of this kind."""
        others = [d for d in range(self.size) if d != self.rank]
        what = f"held a lock on device {device}'s bytes {start} to {stop} for {self.timeout:g} s"
        return self.peers.silent(others, what)

    def _try_lock(self, device: int, kind: int, start: int, stop: int) -> bool:
        request = struct.pack("hhqqi", kind, os.SEEK_SET, start, stop - start, 0)
        try:
            fcntl.fcntl(self._files[device].fd, _SETLK, request)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def meet(self, room: int) -> None:
        self.peers.meet(room)

    def check(self) -> None:
        self.peers.check()

    def fail(self, error: BaseException) -> None:
        """Tell peers that this device ends, and why."""
        self.peers.fail(error)

    def close(self) -> None:
        self._arenas.clear()
        unmap(self._files)
        self.peers.close()


def _no_room(nbytes: int) -> InputError | None:
    """For arenas that the machine's memory cannot hold: the kernel would kill somebody in the middle of training."""
    free = [bytes_ for bytes_ in (_machine_free(), _group_free()) if bytes_ is not None]
    if not free or nbytes <= min(free):
        return None
    return InputError(
        f"arenas for all devices need {nbytes / 1e9:.1f} GB of shared memory and {min(free) / 1e9:.1f} GB are free",
        fix=WAY_OUT,
    )


def _machine_free() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _group_free() -> int | None:
    """What a container may still take, where it has a limit (cgroup v2)."""
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)
