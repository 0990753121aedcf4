"""Processes of one machine that share memory: the default transport, and the one every other is compared with.

An arena is an anonymous file (memfd) that peers open through /proc, so that nothing has a name which could be left
behind. Where that does not exist, a temporary file takes its place and loses its name once everybody has opened it.
Locks are byte ranges of that file (open file description locks): the kernel drops them when their holder dies.
"""

import errno
import fcntl
import mmap
import os
import select
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends import futex
from odc_engine.backends.base import ROOMS, PeerMemory
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

CONTROL = 4096  # bytes before the arena: the words that meetings count in
LOOK = 0.05  # seconds between looks at whether peers still live
RETRY = 50e-6  # seconds between tries for a lock that another device holds
_SETLK = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)


class SharedMemory(PeerMemory):
    """`timeout`: seconds after which a peer that does not come to a meeting, or holds a lock, is reported."""

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = 60.0) -> None:
        self.group, self.timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._maps: list[mmap.mmap] = []
        self._files: list[int] = []
        self._arenas: list[Tensor] = []
        self._words: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
        self._addresses: list[int] = []
        self._came = [0] * ROOMS
        self._peers: dict[int, int] = {}  # pidfd -> device
        self._pids: list[int] = []
        self._alive = select.poll() if hasattr(select, "poll") else None

    def allocate(self, nbytes: int) -> None:
        _check_room(nbytes * self.size)
        fd, path = _create(CONTROL + nbytes)
        told: list[tuple[int, int, str]] = [(0, 0, "")] * self.size
        dist.all_gather_object(told, (os.getpid(), fd, path), group=self.group)
        for device, (pid, number, name) in enumerate(told):
            # Opened anew also for the own arena: locks belong to an open file, not to a process.
            self._attach(os.open(name or f"/proc/{pid}/fd/{number}", os.O_RDWR), CONTROL + nbytes)
            self._watch(device, pid)
        dist.barrier(self.group)  # nobody may close or unlink what a peer has yet to open
        os.close(fd)
        if path:
            Path(path).unlink()

    def _attach(self, fd: int, length: int) -> None:
        memory = mmap.mmap(fd, length)
        words = np.frombuffer(memory, dtype=np.uint32, count=CONTROL // 4)
        self._files.append(fd)
        self._maps.append(memory)
        self._words.append(words)
        self._addresses.append(int(words.ctypes.data))
        self._arenas.append(torch.frombuffer(memory, dtype=torch.uint8, offset=CONTROL))

    def _watch(self, device: int, pid: int) -> None:
        self._pids.append(pid)
        if device != self.rank and self._alive is not None and hasattr(os, "pidfd_open"):
            pidfd = os.pidfd_open(pid)
            self._peers[pidfd] = device
            self._alive.register(pidfd, select.POLLIN)

    def view(self, device: int) -> Tensor:
        return self._arenas[device]

    @contextmanager
    def lock(self, device: int, start: int, stop: int) -> Iterator[None]:
        deadline = time.monotonic() + self.timeout
        while not self._try_lock(device, fcntl.F_WRLCK, start, stop):
            self._check_alive()
            if time.monotonic() > deadline:
                raise PeerLost(self._stopped(), f"held a lock for {self.timeout:g} s: stopped?")
            time.sleep(RETRY)
        try:
            yield
        finally:
            self._try_lock(device, fcntl.F_UNLCK, start, stop)

    def _try_lock(self, device: int, kind: int, start: int, stop: int) -> bool:
        request = struct.pack("hhqqi", kind, os.SEEK_SET, CONTROL + start, stop - start, 0)
        try:
            fcntl.fcntl(self._files[device], _SETLK, request)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def meet(self, room: int) -> None:
        self._came[room] += 1
        count = self._came[room]
        self._words[self.rank][room] = count
        futex.wake(self._addresses[self.rank] + 4 * room)
        deadline = time.monotonic() + self.timeout
        for device in range(self.size):
            while (seen := int(self._words[device][room])) < count:
                futex.wait(self._addresses[device] + 4 * room, seen, LOOK)
                if int(self._words[device][room]) >= count:
                    break
                self._check_alive()
                if time.monotonic() > deadline:
                    raise PeerLost(self._missing(room, count), f"did not come to a meeting within {self.timeout:g} s")

    def _missing(self, room: int, count: int) -> list[int]:
        return [d for d in range(self.size) if int(self._words[d][room]) < count]

    def _check_alive(self) -> None:
        if self._alive is None:
            return
        dead = sorted(self._peers[fd] for fd, _ in self._alive.poll(0))
        if dead:
            pids = ", ".join(str(self._pids[device]) for device in dead)
            raise PeerLost(dead, f"died (pid {pids})")

    def _stopped(self) -> list[int]:
        """The devices whose processes are stopped, or all others where none shows it."""
        others = [d for d in range(self.size) if d != self.rank]
        return [d for d in others if _state(self._pids[d]) in "Tt"] or others

    def close(self) -> None:
        self._arenas.clear()
        self._words.clear()
        for memory in self._maps:
            try:
                memory.close()
            except BufferError:
                continue  # somebody still holds a view (a gradient, say); the map goes with it
        for fd in (*self._files, *self._peers):
            os.close(fd)
        self._maps.clear()
        self._files.clear()
        self._peers.clear()


def _create(length: int) -> tuple[int, str]:
    """A file for an arena, with its pages reserved, and its path where it needs one."""
    path = ""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("odc-arena")
    else:
        fd, path = tempfile.mkstemp(prefix="odc-arena-")
    try:
        os.ftruncate(fd, length)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, length)
    except OSError as error:
        os.close(fd)
        raise InputError(
            f"no shared memory for an arena of {length / 1e6:.0f} MB ({error.strerror})",
            fix="use fewer devices, a smaller model, or --accumulate locked",
        ) from None
    return fd, path


def _check_room(nbytes: int) -> None:
    """Refuse arenas that the machine's memory cannot hold: the kernel would kill somebody in the middle of training."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
    if available is not None and nbytes > available:
        raise InputError(
            f"arenas for all devices need {nbytes / 1e9:.1f} GB of shared memory and {available / 1e9:.1f} GB are free",
            fix="use fewer devices, a smaller model, or --accumulate locked",
        )


def _state(pid: int) -> str:
    """A process's state letter, `?` where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
