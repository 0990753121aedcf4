"""Call a function in several processes of this machine, each with a gloo group in place."""

import contextlib
import multiprocessing as mp
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

Work = Callable[..., Any]


def on_ranks(work: Work, ranks: int, seconds: float, *args: Any) -> list[Any]:
    """What `work(rank, *args)` returns in each process. Raises what the first one says that fails or ends."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="odc-ranks-") as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            parts = (theirs, work, rank, ranks, f"file://{folder}/meet", seconds, args)
            processes.append(context.Process(target=_rank, args=parts, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            return answers(pipes, seconds)
        finally:
            for process in processes:
                process.join(5)
                process.kill()


def answers(pipes: Sequence[Connection], seconds: float, who: str = "process") -> list[Any]:
    """What each has sent within that time: pickled, whether it went well, and its result or what went wrong."""
    deadline = time.monotonic() + seconds
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in found}
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"no answer from {who} {sorted(waiting.values())} within {seconds:g} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            found[waiting[pipe]] = _answer(f"{who} {waiting[pipe]}", pipe)
    return [found[rank] for rank in range(len(pipes))]


def _answer(who: str, pipe: Connection) -> Any:
    try:
        good, value = pickle.loads(pipe.recv_bytes())
    except EOFError:
        raise RuntimeError(f"{who} ended without an answer") from None
    if not good:
        raise RuntimeError(f"{who}: {value}")
    return value


def _rank(
    pipe: Connection, work: Work, rank: int, ranks: int, address: str, seconds: float, args: tuple[Any, ...]
) -> None:
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        limit = timedelta(seconds=seconds)
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks, timeout=limit)
        told = pickle.dumps((True, work(rank, *args)))
    except BaseException as error:
        traceback.print_exc()
        told = pickle.dumps((False, f"{type(error).__name__}: {' '.join(str(error).split())}"))
    pipe.send_bytes(told)
    pipe.close()
    # Peers may be gone, and a GPU context in which a kernel went wrong cannot be taken down in order.
    with contextlib.suppress(Exception):
        dist.barrier()
    os._exit(0)
