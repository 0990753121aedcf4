"""An arena of any size that takes no memory: tensors that have a shape, a dtype and an alignment, and nothing in them.

What a run of a large model would launch can be asked of it, on a GPU that is not here either (`fake_gpu`).
"""

from types import SimpleNamespace

import torch

from odc_engine.backends.base import PeerMemory
from odc_engine.memory.arena import UnitShape
from odc_engine.memory.gpu import GpuArena

META = torch.device("meta")


class MetaMemory(PeerMemory):
    timeout = 20.0
    place = SimpleNamespace(device=META)

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def allocate(self, nbytes):
        self._arenas = [torch.empty(nbytes, dtype=torch.uint8, device=META) for _ in range(self.size)]

    def view(self, device):
        return self._arenas[device]

    def meet(self, _room): ...
    def take(self): ...
    def refill(self): ...
    def fail(self, _error): ...
    def close(self): ...


def kernels():
    """All that an arena may launch."""
    from odc_engine.kernels import device

    return tuple(getattr(device, name) for name in "gather add write total tell wait meet".split())


def units_of(model, size, dtype=torch.bfloat16):
    """The root and a layer, cut into equal parts, as `odc_engine run` does it."""
    parts = {"root": -(-model.root_parameters // size), "layer": -(-model.layer_parameters // size)}
    return [UnitShape(name, part, part, dtype) for name, part in parts.items()]


def minibatch(units, rank, size, accumulate, per_node=None):
    """All that one does to a GPU's arena: gathers in both dtypes, three pushes in each of these, and their sums."""
    made = GpuArena(MetaMemory(rank, size), units, accumulate, per_node)
    for number, unit in enumerate(units):
        for dtype in (torch.float32, torch.bfloat16):
            made.gather(number, torch.empty(size * unit.gather, dtype=dtype, device=META))
            for _ in range(3):
                made.push(number, torch.empty(size * unit.push, dtype=dtype, device=META))
            made.complete()
            made.gradients(number)
