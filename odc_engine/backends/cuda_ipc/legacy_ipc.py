"""Arenas on GPUs of one node through CUDA IPC handles, as torch passes tensors between processes: the fallback where
symmetric memory is not there.

A peer's memory is mapped as memory of this process's own GPU, so that kernels reach it without further ado. The owner
has to outlive all maps of its arena.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import reductions

_reductions: Any = reductions  # torch has no types for it
_DEVICE = 6  # of rebuild_cuda_tensor's arguments: where the memory is mapped


def arenas(nbytes: int, group: dist.ProcessGroup, device: torch.device) -> tuple[list[Tensor], Any]:
    """Everybody's arena as this device maps it, in the order of devices, and what keeps the maps alive."""
    mine = torch.empty(nbytes, dtype=torch.uint8, device=device)
    _, how = _reductions.reduce_tensor(mine)
    told: list[Any] = [how] * group.size()
    dist.all_gather_object(told, how, group=group)
    here = torch.cuda.current_device() if device.index is None else device.index
    every = [mine if d == group.rank() else _mapped(arguments, here) for d, arguments in enumerate(told)]
    return every, mine


def _mapped(arguments: tuple[Any, ...], device: int) -> Tensor:
    opened: Tensor = _reductions.rebuild_cuda_tensor(*arguments[:_DEVICE], device, *arguments[_DEVICE + 1 :])
    return opened
