"""Memory that processes of one machine share: one file per rank, without a name, which all of them map.

The file is anonymous (memfd) and peers open it through /proc, so nothing is left behind, whoever dies. Where that does
not exist or is refused, a temporary file takes its place and loses its name once everybody has opened it.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.collectives import agreed, way_out
from odc_engine.backends.machines import here
from odc_engine.backends.shm.nameless import nameless_file
from odcsim.errors import InputError

WAY_OUT = "use fewer devices, a smaller model, or --accumulate locked"
TOGETHER = "run all devices as one user, in one container"


@dataclass(frozen=True, slots=True)
class Mapped:
    """A device's file, as this device has opened it."""

    pid: int  # of the device
    fd: int
    memory: mmap.mmap


@dataclass(frozen=True, slots=True)
class _Told:
    """What a device tells its peers of its file."""

    machine: str
    pid: int
    fd: int
    path: str
    inode: int  # another process may have a file under the same number, where pids mean something else
    nbytes: int


def share(group: dist.ProcessGroup | None, nbytes: int, near: Sequence[int] | None = None) -> list[Mapped]:
    """Make this rank's file and map those of all ranks, or of the `near` ones. All ranks call it together; it
    succeeds on all or on none."""
    with ExitStack() as made, ExitStack() as opened:
        mine = agreed(group, lambda: _create(nbytes, made))
        told = [mine] * dist.get_world_size(group)
        dist.all_gather_object(told, mine, group=group)
        # The file must live until all have it open.
        devices = range(len(told)) if near is None else near
        _check_sizes(mine, told)
        files = agreed(group, lambda: [_open(device, mine, told[device], opened) for device in devices])
        opened.pop_all()
        return files


def _create(nbytes: int, made: ExitStack) -> _Told:
    """Create a file with its pages reserved. It is closed with `made`, and loses the path that it has if it needs
    one."""
    fd, path = nameless_file(), ""
    try:
        if fd is None:
            fd, path = tempfile.mkstemp(prefix="odc-")
            made.callback(Path(path).unlink)
    except OSError as error:
        fix = way_out(error, "set TMPDIR to a folder that this user may write to")
        raise InputError(f"no file for shared memory ({error.strerror})", fix=fix) from None
    made.callback(os.close, fd)
    try:
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        raise InputError(f"no shared memory for {nbytes / 1e6:.3g} MB ({error.strerror})", fix=WAY_OUT) from None
    return _Told(here(), os.getpid(), fd, path, os.fstat(fd).st_ino, nbytes)


def _check_sizes(mine: _Told, told: Sequence[_Told]) -> None:
    """All devices see all of them, so it is refused on all or on none."""
    for device, its in enumerate(told):
        if its.nbytes != mine.nbytes:
            raise InputError(
                f"device {device} shares {its.nbytes} bytes and this one {mine.nbytes}",
                fix="make the same model on every device, sharded alike",
            )


def _open(device: int, mine: _Told, its: _Told, opened: ExitStack) -> Mapped:
    if its.machine != mine.machine:
        raise InputError(f"device {device} is on another machine", fix="share memory on one machine only")
    try:
        # Opened anew also for the own file: locks belong to an open file, not to a process.
        fd = os.open(its.path or f"/proc/{its.pid}/fd/{its.fd}", os.O_RDWR)
    except OSError as error:
        raise InputError(
            f"memory of device {device} cannot be opened ({error.strerror})", fix=way_out(error, TOGETHER)
        ) from None
    opened.callback(os.close, fd)
    if os.fstat(fd).st_ino != its.inode:
        raise InputError(f"memory of device {device} cannot be opened (pids differ)", fix=TOGETHER)
    try:
        return Mapped(its.pid, fd, mmap.mmap(fd, its.nbytes))
    except OSError as error:  # of ulimit -v, and of the number of maps
        raise InputError(f"memory of device {device} cannot be mapped ({error.strerror})", fix=WAY_OUT) from None


def bytes_of(mapped: Mapped) -> Tensor:
    """A file as bytes. Whoever holds a view of them keeps the map: through numpy, because `torch.frombuffer` keeps the
    object alone, which can be closed under its tensor. What then writes to a gradient writes to anybody's memory."""
    return torch.from_numpy(np.frombuffer(mapped.memory, dtype=np.uint8))


def unmap(mapped: list[Mapped]) -> None:
    """Free files. A map of which somebody still holds a view (a gradient, say) is freed with that view."""
    for one in mapped:
        os.close(one.fd)
        try:
            one.memory.close()
        except BufferError:
            continue
    mapped.clear()
