"""Arenas on GPUs of one node that all devices map: by symmetric memory, or by CUDA IPC handles where that fails.

All devices go one way: each step is tried by all, and where it failed on one, all leave it.
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.cuda_ipc import symmetric
from odcsim.errors import InputError

Result = TypeVar("Result")
Arenas = tuple[list[Tensor], Any]


def provided(nbytes: int, group: dist.ProcessGroup, device: torch.device) -> Arenas:
    """Everybody's arena as this device maps it, in the order of devices, and what keeps the maps alive."""
    every, problem = _symmetric(nbytes, group, device)
    if every is not None:
        return every
    if group.rank() == 0:
        print(f"odc_engine: CUDA IPC handles instead of symmetric memory ({problem})", file=sys.stderr, flush=True)
    return _by_handles(nbytes, group, device)


def _symmetric(nbytes: int, group: dist.ProcessGroup, device: torch.device) -> tuple[Arenas | None, str]:
    """Where it fails nothing of it is kept, or there would be two arenas of each."""
    mine, problem = _tried(group, lambda: symmetric.own(nbytes, device))
    return (None, problem) if mine is None else _tried(group, lambda: symmetric.mapped(mine, group))


def _by_handles(nbytes: int, group: dist.ProcessGroup, device: torch.device) -> Arenas:
    from odc_engine.backends.cuda_ipc import legacy_ipc

    shown, problem = _tried(group, lambda: legacy_ipc.own(nbytes, device))
    if shown is not None:
        told = legacy_ipc.told_by_all(shown, group)
        every, problem = _tried(group, lambda: legacy_ipc.mapped(shown, told, group.rank()))
        if every is not None:
            return every
    raise InputError(
        f"GPUs do not map each other's memory ({problem})",
        fix="use NCCL (--backend torch, or FSDP2 as it is), or ask 'odc_engine doctor --gpu-selftest'",
    )


def _tried(group: dist.ProcessGroup, attempt: Callable[[], Result]) -> tuple[Result | None, str]:
    """What an attempt returns if it succeeds on all devices, or what went wrong on the first on which it did not."""
    result, problem = None, ""
    try:
        result = attempt()
    except Exception as error:  # of whatever kind a torch that has it otherwise may raise
        problem = f"device {group.rank()}: {type(error).__name__}: {' '.join(str(error).split())}"[:300]
    problems = [""] * group.size()
    dist.all_gather_object(problems, problem, group=group)
    first = next(filter(None, problems), "")
    return (None if first else result), first
