"""What docs/engine/index.md calls "not seen" goes as wrong under stock FSDP2."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard


class Decaying(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        said = super().forward(input)
        self.weight.data.mul_(0.5)
        return said


def sharded(kind: type[nn.Linear]) -> nn.Module:
    model = nn.Sequential(kind(4, 4), kind(4, 4))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def loss(model: nn.Module, rank: int) -> Tensor:
    return model(torch.full((2, 4), 1.0 + rank)).square().sum()


def asked_for(rank: int) -> list[bool]:
    """Whether parameters have gradients after `backward(inputs=...)`, and whether `autograd.grad` found any."""
    model = sharded(nn.Linear)
    every = list(model.parameters())
    loss(model, rank).backward(inputs=every)
    found = torch.autograd.grad(loss(model, rank), every, allow_unused=True)
    return [p.grad is not None for p in every] + [grad is not None for grad in found]


def decayed(rank: int) -> list[bool]:
    model = sharded(Decaying)
    before = [p.full_tensor() for p in model.parameters()]
    loss(model, rank).backward()
    return [not torch.equal(p.full_tensor(), b) for p, b in zip(model.parameters(), before, strict=True)]


@pytest.mark.parametrize(("call", "seen"), [(asked_for, [False] * 8), (decayed, [False] * 4)])
def test_gradients_asked_for_by_name_never_come_and_weights_changed_by_data_stay(pools, call, seen):
    assert pools(2).run(call) == [seen] * 2
