"""Default timeout for a silent rank: that of torch's own collectives.

Trainers set it by names of their own (`ddp_timeout`, `comm.init_timeout_seconds`, `nccl_timeout`), and loops by
`init_process_group(timeout=...)`. torch has no public way to read it: only this file uses a private one.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.constants import default_pg_timeout


def usual_timeout(model: nn.Module) -> float:
    """Return the timeout in seconds. Each device type has its own collectives."""
    world: Any = dist.group.WORLD
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        told = world._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):  # another torch, or a backend without, as that of tests
        told = default_pg_timeout
    return float(told.total_seconds())
