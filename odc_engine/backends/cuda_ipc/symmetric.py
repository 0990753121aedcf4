"""Arenas on GPUs of one node through torch's symmetric memory. All that the engine uses of that private API is here.

Its CUDA backend maps peers' memory through file descriptors that devices pass on over sockets; meeting there takes the
group's store, so a gloo group is enough. Its NVSHMEM backend is not used: its barriers did nothing in some versions.
"""

import os
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

BACKEND: Literal["CUDA"] = "CUDA"
# Read when an arena is made. A pool would pair other allocations on other devices; several processes may share a GPU,
# where multicast cannot be bound twice.
ENVIRONMENT = {
    "TORCH_SYMMMEM_IMPLICIT_POOL": "0",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def own(nbytes: int, device: torch.device) -> Tensor:
    """This device's arena. Raises where torch has no symmetric memory, or the driver not what it takes."""
    os.environ.update(ENVIRONMENT)
    import torch.distributed._symmetric_memory as symmetric

    if symmetric.get_backend(device) != BACKEND:  # setting what is set already raises (2.11, 2.13)
        symmetric.set_backend(BACKEND)
    return symmetric.empty(nbytes, dtype=torch.uint8, device=device)


def mapped(mine: Tensor, group: dist.ProcessGroup) -> tuple[list[Tensor], Any]:
    """Everybody's arena as this device maps it, in the order of devices, and what keeps the maps alive."""
    import torch.distributed._symmetric_memory as symmetric

    handle = symmetric.rendezvous(mine, group)
    peers = range(group.size())
    every = [mine if d == group.rank() else handle.get_buffer(d, (mine.numel(),), torch.uint8, 0) for d in peers]
    return every, (mine, handle)


def arenas(nbytes: int, group: dist.ProcessGroup, device: torch.device) -> tuple[list[Tensor], Any]:
    """Both, for all devices at once."""
    return mapped(own(nbytes, device), group)
