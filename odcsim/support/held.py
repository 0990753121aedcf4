"""One process at a time works on a file of ours: by a lock of the kernel, which goes when its holder ends, however."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from odcsim.errors import InputError
from odcsim.support.files import telling

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """The file at `path` is there, and ours alone; who else asks for it is refused. One that was not there and is left
    empty goes again. Where a file system has no locks nobody is kept out: what is written has to bear company."""
    with telling(path):
        opened = _alone(Path(os.path.realpath(path)))
    if opened is None:
        raise InputError("another run is writing to it", where=str(path), fix="wait for it, or name another output")
    try:
        yield
    finally:
        opened.leave()


class _Opened:
    """What a lock hangs on."""

    def __init__(self, path: Path) -> None:
        self.path, self.new, self.locked = path, True, False
        self.fd: int | None
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            self.new, self.fd = False, os.open(path, os.O_RDWR)  # a lock over NFS takes a file that can be written
        _OPEN.add(self)

    def taken(self) -> bool:
        """Whether nobody else has the lock, as far as the file system knows of locks."""
        if fcntl is None or self.fd is None:
            return True
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.locked = True
        return True

    def is_there(self) -> bool:
        """Whether nobody has put it away before it was locked."""
        with suppress(FileNotFoundError):
            return self.fd is not None and os.path.samestat(os.fstat(self.fd), self.path.stat())
        return False

    def leave(self) -> None:
        if self.fd is not None and self.new and self.locked and not os.fstat(self.fd).st_size and self.is_there():
            self.path.unlink()
        self.close()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None


_OPEN: WeakSet[_Opened] = WeakSet()


def _alone(path: Path) -> _Opened | None:
    while True:
        opened = _Opened(path)
        taken = opened.taken()
        if taken and opened.is_there():
            return opened
        opened.close()
        if not taken:
            return None


def _let_go() -> None:
    """A forked process, as a worker may be one, would keep the lock when its holder is killed."""
    for opened in list(_OPEN):
        opened.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
