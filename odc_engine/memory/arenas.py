"""Which memory suits a model, and which arena a memory."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from odc_engine import backends
from odc_engine.backends.base import FarMemory, PeerMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena


def memory_for(model: nn.Module, timeout: float, group: dist.ProcessGroup | None) -> PeerMemory:
    """Arenas where the parameters are, of the usual backend there. `group`: of these devices, not of all."""
    device = next((p.device for p in model.parameters() if p.is_cuda), torch.device("cpu"))
    memory = backends.usual(device.type).memory(SharedMemory(group, timeout), device)
    assert isinstance(memory, PeerMemory)
    return memory


def arena_on(memory: PeerMemory, units: Sequence[UnitShape], accumulate: str, per_node: int | None) -> Arena:
    """Moved by kernels on a GPU, by torch on a CPU, and through a library where no address reaches."""
    if memory.device.type != "cuda":
        if isinstance(memory, FarMemory):
            return FarArena(memory, units, accumulate, per_node)
        return Arena(memory, units, accumulate, per_node)
    from odc_engine.memory.gpu import FarGpuArena, GpuArena

    if isinstance(memory, FarMemory):
        return FarGpuArena(memory, units, accumulate, per_node)
    return GpuArena(memory, units, accumulate, per_node)
