"""Arenas on GPUs of one node through CUDA IPC handles, as torch passes tensors between processes: the fallback where
symmetric memory is not there.

A peer's memory is mapped as memory of this process's own GPU, so that kernels reach it without further ado. The owner
has to outlive all maps of its arena.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import reductions

_reductions: Any = reductions  # torch has no types for it
_DEVICE = 6  # of rebuild_cuda_tensor's arguments: where the memory is mapped


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A device's arena, and how others map it."""

    mine: Tensor
    how: tuple[Any, ...]


def own(nbytes: int, device: torch.device) -> Shown:
    mine = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return Shown(mine, _reductions.reduce_tensor(mine)[1])


def mapped(shown: Shown, told: Sequence[tuple[Any, ...]], rank: int) -> tuple[list[Tensor], Any]:
    """Everybody's arena as this device maps it, in the order of devices, and what keeps the maps alive. `told`: how
    each is mapped."""
    mine = shown.mine
    here = torch.cuda.current_device() if mine.device.index is None else mine.device.index
    return [mine if d == rank else _mapped(arguments, here) for d, arguments in enumerate(told)], mine


def told_by_all(shown: Shown, group: dist.ProcessGroup) -> list[tuple[Any, ...]]:
    told: list[Any] = [shown.how] * group.size()
    dist.all_gather_object(told, shown.how, group=group)
    return told


def arenas(nbytes: int, group: dist.ProcessGroup, device: torch.device) -> tuple[list[Tensor], Any]:
    """All of it at once."""
    shown = own(nbytes, device)
    return mapped(shown, told_by_all(shown, group), group.rank())


def _mapped(arguments: tuple[Any, ...], device: int) -> Tensor:
    opened: Tensor = _reductions.rebuild_cuda_tensor(*arguments[:_DEVICE], device, *arguments[_DEVICE + 1 :])
    return opened
