"""Who works on points: this process, others of this machine, or those of a Dask cluster; any `Executor` does."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from importlib import import_module
from itertools import islice

from odcsim.decide.sweeps.point import Point
from odcsim.decide.sweeps.work import Done, work
from odcsim.errors import InputError

AHEAD = 1024  # points that an executor is given before it has answered
PATIENCE = "15s"  # for a scheduler's answer


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results(points: Iterable[Point], executor: Executor | None) -> Iterator[Done]:
    """In the order in which they are done. Without an executor one after the other, here."""
    if executor is None:
        yield from map(work, points)
        return
    left = iter(points)
    pending: set[Future[Done]] = set()
    try:
        while True:
            pending |= {executor.submit(work, point) for point in islice(left, AHEAD - len(pending))}
            if not pending:
                return
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        for future in pending:
            future.cancel()


@contextmanager
def processes(count: int) -> Iterator[Executor | None]:
    """So many of them; none for one, since this process does as well."""
    if count == 1:
        yield None
        return
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """A worker leaves an interrupt to the process that it works for, and ends with it, however that one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """The workers of a cluster, which have this package and see the files of the grid."""
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise InputError("--dask needs distributed", fix="pip install 'odcsim[dask]'") from None
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(
            f"no scheduler answers at {address!r:.80} ({reason})", fix="such as tcp://10.0.0.1:8786"
        ) from None
    with client:
        yield client.get_executor(pure=False)
