"""The table of transports that tests ask the same of, and devices that do something over one of them."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import arenas
import fake_nvshmem
import pytest
import torch.distributed as dist

from odc_engine.backends import machines
from odc_engine.backends.network import Network
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm import futex
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.backends.tcp.memory import TcpMemory
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

SIZE = 1 << 12  # bytes of an arena


@dataclass(frozen=True)
class Transport:
    """`over`: the machine of each device. `lacks`: what its system has not. `threads`: devices are no processes."""

    made: Callable[..., Any]
    over: tuple[int, ...] = (0, 0, 0)
    lacks: tuple[str, ...] = ()
    arena: bool = True
    locks: bool = True
    threads: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self.over.count(machine) for machine in dict.fromkeys(self.over))


def _shared(group: Any, timeout: float, _: Transport) -> SharedMemory:
    return SharedMemory(group, timeout)


def _network(group: Any, timeout: float, _: Transport) -> Network:
    return Network(group, timeout)


def _tcp(group: Any, timeout: float, _: Transport) -> TcpMemory:
    return TcpMemory(Network(group, timeout))


def _nvshmem(group: Any, timeout: float, of: Transport) -> NvshmemMemory:
    return NvshmemMemory(SharedMemory(group, timeout), fake_nvshmem.FakeNvshmem(of.counts))


TRANSPORTS = {
    "shm": Transport(_shared),
    "shm, an old linux": Transport(_shared, lacks=("kernel 5.3",)),
    "shm elsewhere": Transport(_shared, lacks=("memfd", "pidfd", "futex")),
    "network": Transport(_network, (0, 1, 2), arena=False, locks=False),
    "tcp": Transport(_tcp, (0, 0, 1)),
    "tcp, all apart": Transport(_tcp, (0, 1, 2)),
    "nvshmem": Transport(_nvshmem, (0, 0, 1), locks=False),
    "threads": Transport(_shared, threads=True),
}


def those(**facts: bool) -> pytest.MarkDecorator:
    """The transports of which these hold, as a test's argument `name`."""
    found = [name for name, one in TRANSPORTS.items() if all(getattr(one, f) is fact for f, fact in facts.items())]
    return pytest.mark.parametrize("name", found)


def on_all(pools: Any, name: str, work: Callable[..., Any], *args: Any, timeout: float = 30.0) -> list[Any]:
    """What `work(memory, *args)` returns on each of three devices."""
    if TRANSPORTS[name].threads:
        return arenas.on_every_device(3, lambda memory: _allocated(memory, work, args), timeout)
    return pools(3).run(opened, name, work, timeout, *args)


def _allocated(memory: Any, work: Callable[..., Any], args: Any) -> Any:
    memory.allocate(SIZE)
    return work(memory, *args)


def opened(rank: int, name: str, work: Callable[..., Any], timeout: float, *args: Any) -> Any:
    with surroundings(name, rank):
        memory = made(name, None, timeout)
        try:
            return work(memory, *args)
        finally:
            dist.barrier()  # nobody leaves before the others have seen what they shall see
            memory.close()
            fake_nvshmem.forget()


def made(name: str, group: Any, timeout: float, nbytes: int = SIZE) -> Any:
    of = TRANSPORTS[name]
    memory = of.made(group, timeout, of)
    if of.arena:
        memory.allocate(nbytes)
    return memory


@contextlib.contextmanager
def surroundings(name: str, rank: int) -> Iterator[None]:
    with lacking(*TRANSPORTS[name].lacks), spread(rank, TRANSPORTS[name].over):
        yield


@contextlib.contextmanager
def spread(rank: int, over: tuple[int, ...]) -> Iterator[None]:
    """Devices that say that they are on so many machines."""
    with pytest.MonkeyPatch.context() as patch:
        if len(set(over)) > 1:
            patch.setattr(machines, "here", lambda: f"machine {over[rank]}")
        yield


@contextlib.contextmanager
def lacking(*names: str) -> Iterator[None]:
    """As on a system that lacks these, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        if "kernel 5.3" in names:
            patch.setattr(os, "pidfd_open", _unknown_call)
        if "memfd" in names:
            patch.delattr(os, "memfd_create")
        if "pidfd" in names:
            patch.delattr(os, "pidfd_open")
        if "futex" in names:
            patch.setattr(futex, "_libc", None)
        yield


def _unknown_call(_pid: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def lost(call: Callable[[], Any]) -> list[int]:
    """The devices that are named for what cannot be done."""
    try:
        call()
    except PeerLost as error:
        return error.devices
    return []


def refused(call: Callable[[], Any]) -> str:
    """By what kind of error: of input, or because of another device."""
    try:
        call()
    except (InputError, PeerLost) as error:
        return type(error).__name__
    return ""


def threads_left() -> list[str]:
    """The engine's, which end a moment after what they were for."""
    for each in threading.enumerate():
        if each.name.startswith("odc-"):
            each.join(5.0)
    return [each.name for each in threading.enumerate() if each.name.startswith("odc-")]
