"""Memory that processes of one machine share: one file per rank, without a name, which all of them map.

The file is anonymous (memfd) and peers open it through /proc, so nothing is left behind, whoever dies. Where that does
not exist, a temporary file takes its place and loses its name once everybody has opened it.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.machines import here
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

Result = TypeVar("Result")
WAY_OUT = "use fewer devices, a smaller model, or --accumulate locked"


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
    fd, path = agreed(group, lambda: _create(nbytes))
    try:
        mine = _Told(here(), os.getpid(), fd, path, os.fstat(fd).st_ino, nbytes)
        told = [mine] * dist.get_world_size(group)
        dist.all_gather_object(told, mine, group=group)
        # The file must live until all have it open.
        opened = range(len(told)) if near is None else near
        _check_sizes(mine, told)
        return agreed(group, lambda: [_open(device, mine, told[device]) for device in opened])
    finally:
        os.close(fd)
        if path:
            Path(path).unlink()


def agreed(group: dist.ProcessGroup | None, attempt: Callable[[], Result]) -> Result:
    """Return the result of an attempt if it succeeded on all ranks. If one fails, none waits for it."""
    made, problem = [], None
    try:
        made.append(attempt())
    except InputError as error:
        problem = error
    told = [False] * dist.get_world_size(group)
    dist.all_gather_object(told, problem is not None, group=group)
    if problem is not None:
        raise problem
    if failed := [device for device, bad in enumerate(told) if bad]:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        raise PeerLost([ranks[device] for device in failed], "failed: its own error says why")
    return made[0]


def _create(nbytes: int) -> tuple[int, str]:
    """Create a file with its pages reserved. Returns its path, too, if it needs one."""
    path = ""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("odc")
    else:
        fd, path = tempfile.mkstemp(prefix="odc-")
    try:
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        if path:
            Path(path).unlink()
        raise InputError(f"no shared memory for {nbytes / 1e6:.3g} MB ({error.strerror})", fix=WAY_OUT) from None
    return fd, path


def _check_sizes(mine: _Told, told: Sequence[_Told]) -> None:
    """All devices see all of them, so it is refused on all or on none."""
    for device, its in enumerate(told):
        if its.nbytes != mine.nbytes:
            raise InputError(
                f"device {device} shares {its.nbytes} bytes and this one {mine.nbytes}",
                fix="make the same model on every device, sharded alike",
            )


def _open(device: int, mine: _Told, its: _Told) -> Mapped:
    if its.machine != mine.machine:
        raise InputError(f"device {device} is on another machine", fix="share memory on one machine only")
    try:
        # Opened anew also for the own file: locks belong to an open file, not to a process.
        fd = os.open(its.path or f"/proc/{its.pid}/fd/{its.fd}", os.O_RDWR)
    except OSError as error:
        raise _not_reachable(device, str(error.strerror)) from None
    if os.fstat(fd).st_ino != its.inode:
        os.close(fd)
        raise _not_reachable(device, "pids differ")
    return Mapped(its.pid, fd, mmap.mmap(fd, its.nbytes))


def _not_reachable(device: int, why: str) -> InputError:
    return InputError(
        f"memory of device {device} cannot be opened ({why})", fix="run all devices as one user, in one container"
    )


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
