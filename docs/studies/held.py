"""What two processes hold in a backward under FSDP1 with PyTorch's reentrant checkpoint, with adapters and without.

    python docs/studies/held.py

Of each layer's backward, from the last to the first, the process's memory beyond what it had before, in hidden states
of all tokens. Needs torch, a free port and 2 GB.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.multiprocessing import spawn
from torch.utils.checkpoint import checkpoint

HIDDEN, TOKENS, LAYERS, RANK = 64, 1 << 18, 6, 4
SEEN: list[int] = []  # bytes of the process


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Seen(torch.autograd.Function):
    """Nothing, but for a look when backward passes it."""

    @staticmethod
    def forward(_, x):
        return x.view_as(x)

    @staticmethod
    def backward(_, gradient):
        SEEN.append(resident())
        return gradient


class Adapter(nn.Linear):
    """A matrix of an adapter, which libraries of adapters wrap by itself."""


class Layer(nn.Module):
    def __init__(self, adapted: bool) -> None:
        super().__init__()
        self.weight = nn.Linear(HIDDEN, HIDDEN, bias=False).requires_grad_(not adapted)
        self.adapter = nn.Sequential(Adapter(HIDDEN, RANK, False), Adapter(RANK, HIDDEN, False)) if adapted else None

    def forward(self, x):
        x = Seen.apply(x)
        out = self.weight(x)
        return x + torch.tanh(out if self.adapter is None else out + self.adapter(x))


class Layers(nn.Module):
    def __init__(self, adapted: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(adapted) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


def backward(rank: int, adapted: bool, sharded: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = Layers(adapted)
    if sharded:
        wrapped = ModuleWrapPolicy({Layer, Adapter})
        model = FullyShardedDataParallel(model, auto_wrap_policy=wrapped, device_id=torch.device("cpu"))
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    before = resident()
    model(x).sum().backward()
    if rank == 0:
        states = ((seen - before) / (4 * HIDDEN * TOKENS) for seen in SEEN)
        words = f"{'adapters' if adapted else 'all weights'}, {'FSDP1' if sharded else 'one device'}"
        print(f"{words:24}", *(f"{held:5.1f}" for held in states), flush=True)
    destroy_process_group()


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for sharded in (True, False):
        for adapted in (True, False):
            spawn(backward, (adapted, sharded), nprocs=2)


if __name__ == "__main__":
    main()
