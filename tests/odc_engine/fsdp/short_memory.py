"""A microbatch of several rows, and memory that ends at any operation of it."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS = 40  # of all losses of the minibatch


class OutOfMemory(TorchDispatchMode):
    """Counts operations from the first forward pass on, those of FSDP2 and the engine among them; raises at some."""

    def __init__(self, *points: int) -> None:
        super().__init__()
        self.points, self.count, self.raised, self.armed = points, 0, 0, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += self.armed
        if self.armed and self.count in self.points:
            self.raised += 1
            raise torch.OutOfMemoryError("as if out of memory")
        return func(*args, **(kwargs or {}))

    def arming(self, loss: Callable) -> Callable:
        def armed(rows):
            self.armed = True
            return loss(rows)

        return armed


def batch(rank: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(rank)
    return {"tokens": torch.randint(0, 11, (4, 6), generator=draw), "turn": torch.arange(4)}


def loss(model: nn.Module, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """A sum over tokens, weighed by all tokens of the minibatch."""
    tokens = rows["tokens"]
    found = model(tokens[:, :-1], 0).flatten(0, 1)
    return F.cross_entropy(found, tokens[:, 1:].flatten(), reduction="sum") / TOKENS
