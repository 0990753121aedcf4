"""Arenas on GPUs of one node through torch's symmetric memory. All that the engine uses of that private API is here.

Its CUDA backend maps peers' memory through file descriptors that devices pass on over sockets; meeting there takes the
group's store, so a gloo group is enough. Its NVSHMEM backend is not used: its barriers did nothing in some versions.

Not run yet: no GPU was here.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Read when an arena is made. A pool would pair other allocations on other devices; several processes may share a GPU,
# where multicast cannot be bound twice.
ENVIRONMENT = {
    "TORCH_SYMMMEM_IMPLICIT_POOL": "0",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def lacks() -> str:
    """What of torch's symmetric memory is not there, "" where all is."""
    try:
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed import _symmetric_memory as symmetric
    except ImportError as error:
        return str(error)
    missing = [name for name in ("empty", "rendezvous", "set_backend") if not hasattr(symmetric, name)]
    return ", ".join(missing + [name for name in ("get_buffer",) if not hasattr(_SymmetricMemory, name)])


def arenas(nbytes: int, group: dist.ProcessGroup, device: torch.device) -> tuple[list[Tensor], Any]:
    """Everybody's arena as this device maps it, in the order of devices, and what keeps the maps alive."""
    os.environ.update(ENVIRONMENT)
    import torch.distributed._symmetric_memory as symmetric

    symmetric.set_backend("CUDA")
    mine = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(mine, group)
    peers = range(group.size())
    every = [mine if d == group.rank() else handle.get_buffer(d, (nbytes,), torch.uint8, 0) for d in peers]
    return every, (mine, handle)
