"""Starts one process per device on this machine, or joins the ones that torchrun has started.

A device that fails or dies takes the run down: the others get a few seconds to say what they saw of it, then they are
stopped. Nothing is left behind, whoever is killed.
"""

import contextlib
import multiprocessing as mp
import multiprocessing.connection
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from odc_engine.errors import EngineError
from odcsim.errors import InputError

GRACE = 3.0  # seconds for the others after one device has failed
Work = Callable[..., None]


def say(line: str) -> None:
    """To stderr, in one piece: devices speak at the same time, and some of them share this process."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run(work: Work, devices: int, timeout: float, *args: Any) -> int:
    """Call `work(rank, *args)` in a process per device with a process group in place. 0 when all have succeeded."""
    if under_torchrun():
        if (size := int(os.environ["WORLD_SIZE"])) != devices:
            raise InputError(
                f"torchrun started {size} processes for {devices} devices", fix=f"--nproc-per-node {devices}"
            )
        return _device(work, int(os.environ["RANK"]), devices, "env://", timeout, args)
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        return _spawn(work, devices, f"file://{folder}/rendezvous", timeout, args)


def _spawn(work: Work, devices: int, address: str, timeout: float, args: tuple[Any, ...]) -> int:
    # A server process imports torch once and forks the devices: sixteen imports would take longer than a short run.
    context = mp.get_context("forkserver")
    # FSDP2 imports torch._dynamo at its first use.
    context.set_forkserver_preload(["odc_engine.worker", "torch._dynamo"])
    processes = [
        context.Process(target=_entry, args=(work, rank, devices, address, timeout, args), name=f"device {rank}")
        for rank in range(devices)
    ]
    try:
        for process in processes:
            process.start()
        return _watch(processes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        for process in processes:
            if process.pid is not None:
                process.join()


def _watch(processes: list[Any]) -> int:
    """Wait for all, or for GRACE seconds after the first failure."""
    deadline = None
    while alive := [p for p in processes if p.is_alive()]:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        multiprocessing.connection.wait([p.sentinel for p in alive], timeout=left)
        if deadline is None and any(p.exitcode for p in processes):
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() >= deadline:
            break
    failed = [(rank, p.exitcode) for rank, p in enumerate(processes) if p.exitcode]
    for rank, code in failed:
        if code < 0:
            say(f"odc_engine: error: device {rank} was killed by signal {-code}")
    return 1 if failed else 0


def _entry(work: Work, rank: int, devices: int, address: str, timeout: float, args: tuple[Any, ...]) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if Path("/sys/class/net/lo").exists() else "lo0")
    sys.exit(_device(work, rank, devices, address, timeout, args))


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _device(work: Work, rank: int, devices: int, address: str, timeout: float, args: tuple[Any, ...]) -> int:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # devices share the machine's cores; more threads would fight over them
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=devices, timeout=timedelta(seconds=timeout)
    )
    try:
        work(rank, *args)
    except (EngineError, InputError) as error:
        say(f"odc_engine: error: device {rank}: {error}")
        return 2 if isinstance(error, InputError) else 1
    finally:
        # A group whose peer is gone cannot be taken down in order.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    return 0
