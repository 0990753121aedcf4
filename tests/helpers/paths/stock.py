"""Stock FSDP2 with kinds, in processes that may abort or wait for ever: they are no pool's, and are ended here.

They are forks of one process that has imported transformers, several kinds at a time: those that wait take no
time.
"""

import faulthandler
import multiprocessing as mp
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

START, WAIT = 60.0, 4.0  # seconds to come up, and that a collective waits for its partner
AT_ONCE = 6
HELPERS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ended:
    """How one process ended. `code`: as multiprocessing has it, a signal negative, None where it was ended here;
    `words`: of its error; `result`: what it came to."""

    code: int | None
    words: str = ""
    result: Any = None


def observed(names: Iterable[str]) -> dict[str, list[Ended]]:
    """Of each kind how its ranks ended."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ended"
        environment = os.environ | {"PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        program = "import sys; from paths.stock import main; main(*sys.argv[1:])"
        subprocess.run([sys.executable, "-c", program, str(out), *names], env=environment, check=True, timeout=500)
        return pickle.loads(out.read_bytes())


def main(out: str, *names: str) -> None:
    import peft  # noqa: F401
    import torch._dynamo  # noqa: F401 - FSDP2 does at its first use
    import transformers  # noqa: F401

    from paths import EVERY

    with tempfile.TemporaryDirectory() as folder:
        ended: dict[str, list[Ended]] = {}
        for first in range(0, len(names), AT_ONCE):
            some = names[first : first + AT_ONCE]
            running = [
                [_rank(folder, EVERY[name], i, r) for r in range(EVERY[name].ranks)]
                for i, name in enumerate(some, first)
            ]
            until = time.monotonic() + START
            for i, (name, processes) in enumerate(zip(some, running, strict=True), first):
                ended[name] = [_ended(process, until, _place(folder, i, r)) for r, process in enumerate(processes)]
    Path(out).write_bytes(pickle.dumps(ended))


def _place(folder: str, number: int, rank: int) -> Path:
    return Path(folder) / f"{number}-{rank}"


def _rank(folder: str, kind: Any, number: int, rank: int) -> Any:
    process = mp.get_context("fork").Process(target=_train, args=(folder, kind, number, rank))
    process.start()
    return process


def _ended(process: Any, until: float, place: Path) -> Ended:
    process.join(max(0.0, until - time.monotonic()))
    code = process.exitcode
    process.kill()
    process.join()
    return Ended(code, *(pickle.loads(place.read_bytes()) if place.exists() else ()))


def _train(folder: str, kind: Any, number: int, rank: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a library says when it aborts
    faulthandler.disable()
    place = _place(folder, number, rank)
    try:
        result: Sequence[Any] = ("", _result(f"file://{folder}/{number}", kind, rank))
    except Exception as error:
        result = (f"{type(error).__name__}: {error}", None)
    place.write_bytes(pickle.dumps(result))
    os._exit(0)  # a group that is broken would wait for its peers


def _result(address: str, kind: Any, rank: int) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from paths.followed import whole_gradients

    torch.set_num_threads(1)
    limit = timedelta(seconds=START)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=kind.ranks, timeout=limit)
    group = dist.new_group(timeout=timedelta(seconds=WAIT))
    model = kind.sharded(DeviceMesh.from_group(group, "cpu"))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other sum
            module.set_gradient_divide_factor(1.0)
            module.set_reduce_scatter_unused_params(kind.told)
    dist.barrier()
    if kind.evaluates:
        return kind.evaluated(model, rank)
    kind.backward(model, rank)
    return whole_gradients(model)
