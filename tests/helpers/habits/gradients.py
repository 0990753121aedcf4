"""Gradients that come another way than by a unit's push, stay, or are left out."""

import threading

import torch
from nets import Net, loss, tokens_of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from users import User, by_layers

from habits import habit
from habits.settings import keep_whole


class OutsideHead(nn.Module):
    """The head's weight is used by the loss, not by the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 7)
        self.layers = nn.ModuleList([nn.Linear(7, 7)])
        self.head = nn.Linear(7, 11, bias=False)

    def forward(self, tokens, turn):  # noqa: ARG002
        x = torch.tanh(self.layers[0](self.embedding(tokens)))
        weight = self.head.weight
        return F.linear(x, weight.full_tensor() if hasattr(weight, "full_tensor") else weight)


def shard_head_apart(model):
    from torch.distributed.fsdp import fully_shard

    for module in (*model.layers, model.head):
        fully_shard(module)
    fully_shard(model)


@habit(counts=(1, 1), model=OutsideHead, wrap=shard_head_apart)
def full_tensor_in_a_loss(user: User) -> None:
    """`lm_head.weight.full_tensor()` in a loss"""
    for _ in range(2):
        user.backward()
        user.settle()
        user.look_at_gradients()
        user.step()
        user.publish()


@habit(counts=(3, 1), model=OutsideHead, wrap=shard_head_apart)
def full_tensor_in_a_loss_uneven(user: User) -> None:
    """`lm_head.weight.full_tensor()` in a loss, with unequal numbers of microbatches"""
    for _ in range(2):
        user.minibatch()


@habit(counts=(1, 1))
def penalty_on_shards(user: User) -> None:
    """a penalty computed on the sharded parameters, outside of a forward pass"""
    user.backward()
    penalty = sum(p.pow(2).sum() for p in user.model.parameters())
    (penalty.full_tensor() if hasattr(penalty, "full_tensor") else penalty).backward()
    user.finish()


@habit()
def sync_left_off(user: User) -> None:
    """gradient sync off, and left off at the last microbatch"""
    set_sync(user, False)
    user.backward()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit()
def sync_left_off_then_on(user: User) -> None:
    """gradient sync left off for a minibatch, on in the next one"""
    set_sync(user, False)
    user.backward()
    user.publish()
    set_sync(user, True)
    user.minibatch()


@habit(counts=(2, 2))
def sync_at_the_last(user: User) -> None:
    """gradient sync off but for the last microbatch"""
    for _ in range(2):
        user.number += 1
        for rank in user.ranks:
            for m in range(2):
                set_sync(user, m == 1)
                loss(user.model, rank, m, user.number).backward()
        user.settle()
        user.look_at_gradients()
        user.step()
        user.publish()


def set_sync(user: User, on: bool) -> None:
    if user.odc:
        user.model.set_requires_gradient_sync(on)


@habit()
def kept_over_publish(user: User) -> None:
    """`.grad` kept over `publish()`"""
    user.backward()
    user.settle()
    kept = {name: p.grad for name, p in user.model.named_parameters()}
    user.step()
    user.publish()
    user.seen.append({name: _whole(value) for name, value in kept.items()})
    user.minibatch()
    user.seen.append({name: _whole(value) for name, value in kept.items()})


@habit()
def kept_local_over_publish(user: User) -> None:
    """`.grad.to_local()` kept over `publish()`"""
    user.backward()
    user.settle()
    kept = [_local(p.grad) for p in user.model.parameters()]
    before = [value.clone() for value in kept]
    user.step()
    user.publish()
    user.minibatch()
    user.seen.append(float(sum((a - b).abs().sum() for a, b in zip(kept, before, strict=True))))


def _whole(value):
    return value.full_tensor().clone() if hasattr(value, "full_tensor") else value.clone()


def _local(value):
    return value.to_local() if hasattr(value, "to_local") else value


@habit()
def changed_in_place(user: User) -> None:
    """gradients scaled in place after `settle()`"""
    user.backward()
    user.settle()
    for p in user.model.parameters():
        p.grad.mul_(0.5)
    user.step()
    user.publish()


@habit()
def set_after_settle(user: User) -> None:
    """a penalty's gradient added to `.grad` after `settle()`"""
    user.backward()
    user.settle()
    for p in user.model.parameters():
        p.grad.add_(p.detach(), alpha=0.1)
    user.step()
    user.publish()


@habit()
def noise_before_settle(user: User) -> None:
    """something added to `.grad` before `settle()`"""
    user.backward()
    for p in user.model.parameters():
        if p.grad is not None:
            p.grad.add_(p.detach(), alpha=0.1)
    user.finish()


@habit()
def own_gradient_before_settle(user: User) -> None:
    """`.grad` set by hand before `settle()`"""
    user.backward()
    for p in user.model.parameters():
        p.grad = torch.ones_like(p)
    user.finish()


@habit()
def own_gradient_after_settle(user: User) -> None:
    """`.grad` set by hand after `settle()`"""
    user.backward()
    user.settle()
    for p in user.model.parameters():
        p.grad = torch.full_like(p.detach(), 0.5)
    user.step()
    user.publish()
    user.minibatch()


@habit()
def retained_graph(user: User) -> None:
    """two backward passes through one graph"""
    user.number += 1
    for rank in user.ranks:
        value = user.loss(rank, 0)
        value.backward(retain_graph=True)
        value.backward()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit()
def two_losses(user: User) -> None:
    """two forward passes, then two backward passes"""
    user.number += 1
    losses = [user.loss(rank, m) for rank in user.ranks for m in range(2)]
    for value in losses:
        value.backward()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit()
def one_loss_of_two_passes(user: User) -> None:
    """two forward passes, one backward pass for both"""
    user.number += 1
    sum(user.loss(rank, m) for rank in user.ranks for m in range(2)).backward()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit(counts=(1, 1))
def in_a_thread(user: User) -> None:
    """backward passes in a thread of their own"""
    for _ in range(2):
        thread = threading.Thread(target=user.backward)
        thread.start()
        thread.join()
        user.finish()


class FromInputs(Net):
    """Whose input wants gradients, too."""

    def forward(self, x: Tensor, turn: int) -> Tensor:  # noqa: ARG002
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _input(user: User, rank: int, microbatch: int) -> Tensor:
    draw = torch.Generator().manual_seed(100 * user.number + 10 * rank + microbatch)
    return torch.randn(3, 7, generator=draw, dtype=torch.float64).to(user.dtype).requires_grad_()


def _penalized(user: User) -> None:
    """The loss counts how much it depends on its input."""
    user.number += 1
    for rank in user.ranks:
        out = user.model(x := _input(user, rank, 0), 0).logsumexp(-1).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        (out + slope.pow(2).sum()).backward()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()


@habit(model=FromInputs)
def gradient_penalty(user: User) -> None:
    """a penalty on gradients, by `create_graph=True`"""
    _penalized(user)


@habit(model=FromInputs, wrap=keep_whole)
def gradient_penalty_kept_whole(user: User) -> None:
    """the same where `fully_shard(reshard_after_forward=False)` and `set_reshard_after_backward(False)` keep weights"""
    _penalized(user)
    _penalized(user)


class RecomputedFromInputs(FromInputs):
    def forward(self, x: Tensor, turn: int) -> Tensor:  # noqa: ARG002
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


def keep_root_whole(model: nn.Module) -> None:
    by_layers(model)
    model.set_reshard_after_backward(False, recurse=False)


@habit(model=RecomputedFromInputs, wrap=keep_root_whole)
def gradient_penalty_recomputed(user: User) -> None:
    """the same under activation checkpointing, where the root alone keeps its weights"""
    _penalized(user)


@habit(model=FromInputs)
def adversarial(user: User) -> None:
    """adversarial inputs: `torch.autograd.grad` of the input first, then a backward pass"""
    for _ in range(2):
        user.number += 1
        for rank in user.ranks:
            for microbatch in range(user.habit.counts[rank]):
                x = _input(user, rank, microbatch)
                (slope,) = torch.autograd.grad(user.model(x, 0).logsumexp(-1).sum(), x)
                user.model((x + 0.1 * slope.sign()).detach(), 0).logsumexp(-1).sum().backward()
        user.finish()


@habit(counts=(2, 2), bound=0.1)
def one_autocast(user: User) -> None:
    """one `torch.autocast` around forward and backward passes of several microbatches"""
    with torch.autocast("cpu", torch.bfloat16):
        user.backward()
    user.finish()


@habit(counts=(2, 2), bound=0.1)
def autocast(user: User) -> None:
    """`torch.autocast` around each forward pass"""
    user.number += 1
    for rank in user.ranks:
        for microbatch in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                value = user.loss(rank, microbatch)
            value.backward()
    user.settle()
    user.step()
    user.publish()


@habit()
def tokens_without_gradient(user: User) -> None:
    """a loss that needs no gradient at all"""
    user.number += 1
    with torch.no_grad():
        user.seen.append(user.model(tokens_of(0, 0), 0).sum().item())
    user.finish()
