"""What docs/engine/index.md calls "not seen" goes as wrong under stock FSDP2."""

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


def test_gradients_that_are_asked_for_by_name_never_come(pools):
    assert pools(2).run(asked_for) == [[False] * 8] * 2


def test_weights_stay_that_a_forward_pass_changes_by_data(pools):
    assert pools(2).run(decayed) == [[False] * 4] * 2
