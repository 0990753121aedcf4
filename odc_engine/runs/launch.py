"""Start one process per rank on this machine, or join the processes that torchrun or srun has started.

If a rank fails or dies, the run ends: the others get a few seconds to print what they saw, then they are killed. No
process is left behind, whoever is killed, this process included.
"""

import contextlib
import ctypes
import faulthandler
import itertools
import multiprocessing as mp
import multiprocessing.connection
import multiprocessing.reduction
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from odc_engine import backends
from odc_engine.errors import EngineError
from odc_engine.runs import server
from odc_engine.runs.handles import Handles
from odc_engine.runs.watch import GRACE, Vigil, say
from odc_engine.started import Started, started
from odcsim.errors import InputError
from odcsim.support.command import lacking

if TYPE_CHECKING:
    from odc_engine.backends.base import Host

Work = Callable[..., None]
_PARENT_DIES = 1  # PR_SET_PDEATHSIG of prctl
_CONNECTION = "gloo/transport"  # in what gloo says of a connection that broke


def run(
    work: Work, devices: int, timeout: float, *args: Any, across: bool = False, env: Mapping[str, str] | None = None
) -> int:
    """Call `work(memory, *args)` in one process per rank, with a process group and shared memory without an arena yet.

    Returns 0 if all have succeeded, 2 if one had bad input, else 1. `across`: ranks may be on several machines, which
    use a network instead of shared memory. `env`: more environment variables for processes that are started here.
    """
    if (place := started()) is not None:
        _check(place, devices, across)
        if code := _device(work, place.rank, devices, place.address, timeout, args, shared=place.one_machine):
            os._exit(code)  # lanes may still be running, and an interpreter that ends under them aborts
        return 0
    with _rendezvous() as meeting, _ended_by_signals():
        return _spawn(work, devices, meeting, timeout, args, env or {})


def _check(place: Started, devices: int, across: bool) -> None:
    if place.size != devices:
        count = f"--ntasks {devices}" if place.by == "srun" else f"--nproc-per-node {devices}"
        raise InputError(f"{place.by} started {place.size} processes for {devices} devices", fix=count)
    if not place.one_machine and not across:
        raise InputError(
            f"{place.by} started {place.here} of {place.size} processes on this machine, and this backend's memory is "
            "one machine's",
            fix=f"{place.fix(devices)}, or --backend {' or '.join(backends.across())}",
        )


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A file for ranks to find each other: a path, or an open file without a name, which each rank inherits.

    If it were opened through this process's entry in /proc, torch would look for it forever once this process is
    killed.
    """

    path: str = ""
    fd: int = -1

    def __reduce__(self) -> "tuple[Callable[..., Rendezvous], tuple[Any, ...]]":
        return _received, (self.path, multiprocessing.reduction.DupFd(self.fd) if self.fd >= 0 else None)

    @property
    def address(self) -> str:
        return f"file://{self.path or f'/proc/self/fd/{self.fd}'}"


def _received(path: str, inherited: Any) -> Rendezvous:
    return Rendezvous(path, inherited.detach() if inherited else -1)


@contextlib.contextmanager
def _rendezvous() -> Iterator[Rendezvous]:
    """Return a file that leaves nothing behind if the parent is killed, if the system has files without a name."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory(prefix="odc-") as folder:
            yield Rendezvous(path=f"{folder}/rendezvous")
        return
    fd = os.memfd_create("odc-rendezvous")
    try:
        yield Rendezvous(fd=fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Exit in order on SIGTERM, as on an interrupt. Signals reach the main thread only, and none that is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, _end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)


def _spawn(
    work: Work, devices: int, meeting: Rendezvous, timeout: float, args: tuple[Any, ...], env: Mapping[str, str]
) -> int:
    server.start()
    starter, handles = server.pid(), Handles()
    pipes = [server.CONTEXT.Pipe(duplex=False) for _ in range(devices)]
    processes = [
        server.CONTEXT.Process(
            target=_entry, args=(work, rank, devices, meeting, timeout, args, env, end, starter), name=f"device {rank}"
        )
        for rank, (_, end) in enumerate(pipes)
    ]
    try:
        server.fork([partial(handles.start, process) for process in processes], timeout)
        return Vigil(processes, [heard for heard, _ in pipes], timeout).code()
    finally:
        _clear(processes)
        handles.end(GRACE)
        for connection in itertools.chain(*pipes):
            connection.close()


def _clear(processes: list[Any]) -> None:
    """End the remaining processes, and the fork server too if it does not report that it has ended."""
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in [p for p in processes if p.pid is not None]:
        process.join(GRACE)
        if process.is_alive():
            server.kill()
            process.join()


def _entry(
    work: Work,
    rank: int,
    devices: int,
    meeting: Rendezvous,
    timeout: float,
    args: tuple[Any, ...],
    env: Mapping[str, str],
    end: Connection,
    starter: int | None,
) -> None:
    os.environ.update(env)  # here, since the server that forks is older than a run, and nothing has touched CUDA yet
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGKILL)
    if os.getppid() != starter:  # who was killed before this one could ask to go with it
        os._exit(1)
    threading.Thread(target=_die_with_parent, args=(starter,), daemon=True).start()
    try:
        code = _device(work, rank, devices, meeting.address, timeout, args)
    finally:
        with contextlib.suppress(OSError):  # whoever started this one may be gone
            end.send_bytes(b"over")
    sys.exit(code)


def _die_with_parent(server: int) -> None:
    """Exit if the parent was killed, and end all ranks, also stopped ones. Without the server, the parent has
    dropped this rank and may be alive."""
    parent = mp.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        if os.getppid() == server:
            shutil.rmtree(multiprocessing.util.get_temp_dir(), ignore_errors=True)
            os.kill(server, signal.SIGKILL)  # Linux then kills whom the server has forked
        os._exit(1)


def _device(
    work: Work, rank: int, devices: int, address: str, timeout: float, args: tuple[Any, ...], *, shared: bool = True
) -> int:
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from odc_engine.backends.aside import Aside
    from odc_engine.backends.network import Network
    from odc_engine.backends.patience import until_repeated
    from odc_engine.backends.shm.memory import SharedMemory

    faulthandler.enable()  # one that crashes says where its threads were
    torch.set_num_threads(1)  # devices share the machine's cores; more threads would fight over them
    if shared:  # then nobody but this machine's devices shall reach the ports of gloo, NCCL and NVSHMEM's start
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"):
            os.environ.setdefault(name, "lo" if Path("/sys/class/net/lo").exists() else "lo0")
    memory: Host | None = None
    try:
        limit = timedelta(seconds=timeout)
        store, _, _ = next(rendezvous(address, rank, devices, timeout=limit))
        # torchrun keeps its store when it restarts devices, and gloo would look for those that are gone.
        store = PrefixStore(f"odc {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        patience = timedelta(seconds=timeout if shared else until_repeated(timeout))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=devices, timeout=patience)
        memory = SharedMemory(timeout=timeout) if shared else Network(timeout=timeout)
        work(memory, *args)
        memory.close()
    except Exception as error:
        return _failed(rank, memory, error)
    finally:
        # A group whose peer is gone cannot be taken down in order, and NCCL might try without end.
        wait([Aside().call(dist.destroy_process_group)], GRACE)
    return 0


def _failed(rank: int, memory: "Host | None", error: Exception) -> int:
    """Print why this rank ends, in one line if the program is not at fault. Returns the exit code."""
    if told := lacking(error):
        error = EngineError(told)
    if isinstance(error, RuntimeError) and not isinstance(error, EngineError):
        error = _named(memory, error)
    if memory is not None:
        memory.fail(error)
    if not isinstance(error, EngineError | InputError):
        raise error
    say(f"odc_engine: error: device {rank}: {error}")
    return 2 if isinstance(error, InputError) else 1


def _named(memory: "Host | None", error: RuntimeError) -> Exception:
    """Name the rank at fault: gloo reports a broken connection or a timeout without one."""
    if memory is None:
        return EngineError(f"devices did not all come up ({str(error).splitlines()[0]})")
    left = EngineError("another device left before it could say so; its own line tells why")
    return memory.explain() or (left if _CONNECTION in str(error) else error)
