"""How long a silent device is waited for where nobody says: as long as torch's own collectives wait.

Trainers set that by names of their own (`ddp_timeout`, `comm.init_timeout_seconds`, `nccl_timeout`), and loops by
`init_process_group(timeout=...)`. torch has no public way to ask for it: this is the only file that knows another.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.constants import default_pg_timeout


def usual_timeout(model: nn.Module) -> float:
    """Seconds. Each kind of device has collectives of its own."""
    world: Any = dist.group.WORLD
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        told = world._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):  # another torch, or a backend without, as that of tests
        told = default_pg_timeout
    return float(told.total_seconds())
