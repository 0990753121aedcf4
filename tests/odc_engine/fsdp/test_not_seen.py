"""What docs/engine/index.md calls "not seen" goes as wrong under stock FSDP2."""

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard


class Decaying(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        said = super().forward(input)
        self.weight.data.mul_(0.5)
        return said


def seen(rank: int) -> list[bool]:
    """Whether parameters have gradients after `backward(inputs=...)`, whether `autograd.grad` finds any, and whether
    weights are others that `.data` has changed in a forward pass."""
    models = [nn.Sequential(kind(4, 4), kind(4, 4)) for kind in (nn.Linear, Decaying)]
    for model in models:
        for module in (*model, model):
            fully_shard(module)
    (plain, decaying), (every, weights) = models, [list(model.parameters()) for model in models]
    x = torch.full((2, 4), 1.0 + rank)
    plain(x).square().sum().backward(inputs=every)
    found = torch.autograd.grad(plain(x).square().sum(), every, allow_unused=True)
    before = [p.full_tensor() for p in weights]
    decaying(x).square().sum().backward()
    changed = [not torch.equal(p.full_tensor(), b) for p, b in zip(weights, before, strict=True)]
    return [p.grad is not None for p in every] + [grad is not None for grad in found] + changed


def test_gradients_asked_for_by_name_never_come_and_weights_changed_by_data_stay(pools):
    assert pools(2).run(seen) == [[False] * 12] * 2
