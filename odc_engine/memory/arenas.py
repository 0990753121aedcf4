"""Choose the memory for a model, and the arena for a memory."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn

from odc_engine import backends
from odc_engine.backends import machines
from odc_engine.backends.base import FarMemory, Host, PeerMemory
from odc_engine.backends.collectives import agreed
from odc_engine.backends.network import Network
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena
from odcsim.errors import InputError


def memory_for(model: nn.Module, timeout: float, group: dist.ProcessGroup | None) -> PeerMemory:
    """Return memory on the parameters' device, from the usual backend for one machine or for several. `group`: only
    these ranks."""
    device = next((p.device for p in model.parameters() if p.is_cuda), torch.device("cpu"))
    across = machines.several(group)
    row = backends.usual(device.type, across=across)

    def refuse_missing() -> None:
        if lacks := row.lacks():
            raise InputError(
                f"devices are on several machines, and {row.name}, which reaches GPUs of others, is not installed",
                fix=f"{lacks}, or a mesh of replicas each of which is on one machine",
            )

    if across:
        agreed(group, refuse_missing)
    with ExitStack() as opened:
        host = opened.enter_context(host_of(group, timeout))
        memory = row.memory(host, device)
        assert isinstance(memory, PeerMemory)
        opened.pop_all()
    return memory


def host_of(group: dist.ProcessGroup | None, timeout: float) -> Host:
    """Return the processes' host: of one machine, or of several."""
    return Network(group, timeout) if machines.several(group) else SharedMemory(group, timeout)


def arena_on(memory: PeerMemory, units: Sequence[UnitShape], accumulate: str | None, per_node: int | None) -> Arena:
    """Return an arena: kernels move bytes on a GPU, torch on a CPU, and a library where no address reaches.
    `accumulate`: by default in place (locked) if that loses nothing and reaches every rank, else slots."""
    remote = isinstance(memory, FarMemory)
    if not accumulate:
        beyond = per_node is None and isinstance(memory, FarMemory) and not memory.all_near_from_the_start
        accumulate = "slots" if memory.why_not_add or beyond else "locked"
    kind = FarArena if remote else Arena
    if memory.device.type == "cuda":
        from odc_engine.memory.gpu import FarGpuArena, GpuArena

        kind = FarGpuArena if remote else GpuArena
    return kind(memory, units, accumulate, per_node)
