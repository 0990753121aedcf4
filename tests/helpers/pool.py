"""Live worker processes for tests: one per device, with a process group in place, told what to do over a pipe.

Starting devices anew for each test would take longer than all tests together.
"""

import contextlib
import faulthandler
import multiprocessing as mp
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from ranks import answers

TIMEOUT = 60.0  # seconds that one call may take
START = 120.0  # seconds for processes to come up, on a loaded machine
# Threads of one process. Groups that a call made stay, since torch keeps their names, and three threads of each wake up
# a hundred times a second: beside a hundred such groups nothing else gets far.
CROWDED = 40
# FSDP2 imports torch._dynamo at its first use: seconds, which all devices would spend one by one.
PRELOAD = ["odc_engine.devices.process", "odc_engine.runs.verify", "torch._dynamo", "pytest", "hypothesis"]


def threads(pid: int) -> int:
    """Of a process, where the system tells."""
    try:
        return len([*Path(f"/proc/{pid}/task").iterdir()])
    except OSError:
        return 0


class Pool:
    """A process per device. A failed call ends all of them; the next one starts new ones."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self._processes: list = []
        self._pipes: list = []

    def run(self, work: Callable, *args, timeout: float = TIMEOUT) -> list:
        """Call `work(rank, *args)` on every device. Their results, or the first failure."""
        if not self._processes:
            self.start()
            answers(self._pipes, START, "device")
        self.tell(work, args)
        try:
            return answers(self._pipes, timeout, "device")
        except BaseException:
            self.stop()
            raise
        finally:
            if any(threads(pid) > CROWDED for pid in self.pids()):
                self.stop()

    def tell(self, work: Callable, args: tuple) -> None:
        call = pickle.dumps((work, args))
        for pipe in self._pipes:
            pipe.send_bytes(call)

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="odc-pool-")  # new groups meet in it too
        for rank in range(self.devices):
            self.begin(_serve, rank, self.devices, f"file://{self._folder.name}/rendezvous")

    def begin(self, serve: Callable, *args) -> None:
        """Another process, which calls `serve(pipe, *args)`."""
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        ours, theirs = context.Pipe()
        number = len(self._processes)
        process = context.Process(target=serve, args=(theirs, *args), daemon=True, name=f"device {number}")
        process.start()
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if hasattr(self, "_folder"):
            self._folder.cleanup()
        self._processes.clear()
        self._pipes.clear()


def _serve(pipe, rank: int, devices: int, address: str) -> None:
    import torch
    import torch.distributed as dist

    faulthandler.enable()  # one that crashes says where its threads were
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["TRITON_INTERPRET"] = "1"  # a process interprets kernels or compiles them, whoever imports them first
    torch.set_num_threads(1)
    limit = timedelta(seconds=2 * TIMEOUT)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=devices, timeout=limit)
    serve(pipe, rank)


def serve(pipe, rank: int) -> None:
    """Whatever it is told to do, one after the other."""
    pipe.send_bytes(pickle.dumps((True, rank)))
    with contextlib.suppress(EOFError):  # the tests are over
        while True:
            pipe.send_bytes(_call(rank, *pickle.loads(pipe.recv_bytes())))


def _call(rank: int, work: Callable, args: tuple) -> bytes:
    try:
        return pickle.dumps((True, work(rank, *args)))
    except BaseException:
        return pickle.dumps((False, traceback.format_exc()))


class Pools:
    """A pool for each number of devices, or whatever a pool of this kind is made of, that tests ask for."""

    def __init__(self, kind: type[Pool] = Pool) -> None:
        self._pools: dict[tuple, Pool] = {}
        self._kind = kind

    def __call__(self, *devices: int):
        return self._pools.setdefault(devices, self._kind(*devices))

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()
