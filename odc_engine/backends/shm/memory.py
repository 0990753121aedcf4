"""Processes of one machine that share memory: the default transport, and the one every other is compared with.

Locks are byte ranges of an arena's file (open file description locks): the kernel drops them when their holder dies.
"""

import errno
import fcntl
import functools
import math
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.base import Host, Lockable
from odc_engine.backends.patience import LIMIT, Patience
from odc_engine.backends.shm.files import WAY_OUT, Mapped, agreed, bytes_of, share, unmap
from odc_engine.backends.shm.peers import Peers
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

RETRY = 50e-6  # seconds between tries for a lock that another device holds ...
AT_ONCE = 50  # ... after so many without a pause: who holds it is done before a sleep would end
_CACHED = ("active_file", "inactive_file")
_SETLK = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)


class SharedMemory(Lockable, Host):
    """`timeout`: seconds after which a peer that does not come to a meeting, or holds a lock, is reported.

    Every device makes one, at the same time. Meetings work before there is an arena.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = LIMIT) -> None:
        self.group, self.timeout = group, timeout
        self.peers = Peers(group, timeout)
        self.rank, self.size = self.peers.rank, self.peers.size
        self._files: list[Mapped] = []
        self._arenas: list[Tensor] = []

    def allocate(self, nbytes: int) -> None:
        # Device 0 asks for all, before any has taken its part.
        agreed(self.group, lambda: _check_room(nbytes * self.size) if self.rank == 0 else None)
        self._files = share(self.group, nbytes)
        self._arenas = [bytes_of(file) for file in self._files]

    def view(self, device: int) -> Tensor:
        return self._arenas[device]

    @contextmanager
    def lock(self, device: int, start: int, stop: int) -> Iterator[None]:
        with self._locked(self._files[device].fd, start, stop, f"device {device}'s bytes {start} to {stop}"):
            yield

    @contextmanager
    def _locked(self, fd: int, start: int, stop: int, what: str) -> Iterator[None]:
        patience, tries = Patience(), 0
        while not _try_lock(fd, start, stop):
            self.check()
            if patience.ended(self.timeout):
                raise self._holding(what)
            tries += 1
            if tries > AT_ONCE:
                time.sleep(RETRY)
        try:
            yield
        finally:
            _unlock(fd, start, stop)

    def _holding(self, what: str) -> PeerLost:
        """The kernel does not tell who holds a lock of this kind."""
        others = [d for d in range(self.size) if d != self.rank]
        return self.peers.silent(others, f"held a lock on {what} for {self.timeout:g} s")

    def try_lock(self, device: int, start: int, stop: int) -> bool:
        return _try_lock(self._files[device].fd, start, stop)

    def unlock(self, device: int, start: int, stop: int) -> None:
        _unlock(self._files[device].fd, start, stop)

    def take(self) -> int:
        self.check()
        with self._locked(*self.peers.count, "the shared queue"):
            return self.peers.take()

    def refill(self) -> None:
        self.peers.refill()

    def meet(self, room: int) -> None:
        self.peers.meet(room)

    def check(self) -> None:
        self.peers.check()

    def explain(self) -> Exception | None:
        return self.peers.explain()

    def silent(self, devices: list[int], what: str) -> PeerLost:
        return self.peers.silent(devices, what)

    def fail(self, error: BaseException) -> None:
        self.peers.fail(error)

    def close(self) -> None:
        self._arenas.clear()
        unmap(self._files)
        self.peers.close()


def _try_lock(fd: int, start: int, stop: int) -> bool:
    try:
        fcntl.fcntl(fd, _SETLK, _request(fcntl.F_WRLCK, start, stop))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _unlock(fd: int, start: int, stop: int) -> None:
    fcntl.fcntl(fd, _SETLK, _request(fcntl.F_UNLCK, start, stop))


@functools.cache
def _request(kind: int, start: int, stop: int) -> bytes:
    """A `struct flock` for bytes of a file."""
    return struct.pack("hhqqi", kind, os.SEEK_SET, start, stop - start, 0)


def _check_room(nbytes: int) -> None:
    """Refuse arenas that memory cannot hold: the kernel would kill somebody in the middle of training."""
    free = min(_machine_free(), _group_free())
    if nbytes > free:
        raise InputError(
            f"arenas for all devices need {nbytes / 1e9:.1f} GB of shared memory and {free / 1e9:.1f} GB are free",
            fix=WAY_OUT,
        )


def _machine_free() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf  # unknown
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), math.inf)


def _group_free(folder: str = "/sys/fs/cgroup") -> float:
    """What a container may still take, where it has a limit (cgroup v2). Cached files give way."""
    try:
        limit, used, parts = (Path(folder, f"memory.{name}").read_text() for name in ("max", "current", "stat"))
    except OSError:
        return math.inf
    cached = sum(int(line.split()[1]) for line in parts.splitlines() if line.split()[0] in _CACHED)
    return math.inf if limit.strip() == "max" else float(int(limit) - int(used) + cached)
