"""Byte ranges of an arena's file that one device holds against others (open file description locks): the kernel drops
them when their holder dies."""

import errno
import fcntl
import functools
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from odc_engine.backends.base import Lockable
from odc_engine.backends.patience import Patience
from odc_engine.backends.shm.files import Mapped

RETRY = 50e-6  # seconds between tries for a lock that another device holds ...
AT_ONCE = 50  # ... after so many without a pause: who holds it is done before a sleep would end
_SETLK = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)


class FileLocks(Lockable):
    """Arenas that are files, of a device and those near it."""

    _files: list[Mapped]

    @contextmanager
    def lock(self, device: int, start: int, stop: int) -> Iterator[None]:
        with self._locked(self._file(device), start, stop, f"device {device}'s bytes {start} to {stop}"):
            yield

    def _file(self, device: int) -> int:
        return self._files[device - self.near.start].fd

    @contextmanager
    def _locked(self, fd: int, start: int, stop: int, what: str) -> Iterator[None]:
        patience, tries, others = Patience(), 0, [d for d in self.near if d != self.rank]
        while not _try_lock(fd, start, stop):
            self.check()
            if over := patience.over(self, others):  # the kernel does not tell who holds a lock of this kind
                raise self.silent(others, f"held a lock on {what} for {over:g} s")
            tries += 1
            if tries > AT_ONCE:
                time.sleep(RETRY)
        try:
            yield
        finally:
            _unlock(fd, start, stop)

    def try_lock(self, device: int, start: int, stop: int) -> bool:
        return _try_lock(self._file(device), start, stop)

    def unlock(self, device: int, start: int, stop: int) -> None:
        _unlock(self._file(device), start, stop)


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
