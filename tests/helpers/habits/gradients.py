"""Gradients that come another way than by a unit's push, stay, or are left out."""

import threading

import torch
from nets import Net, loss, tokens_of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from users import User, by_layers, local, whole

from habits import habit, in_words
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
    torch.distributed.fsdp.fully_shard(model.head)
    by_layers(model)


in_words(__name__, counts=(1, 1), model=OutsideHead, wrap=shard_head_apart)("""
full_tensor_in_a_loss: 2 x backward settle look_at_gradients step publish | `lm_head.weight.full_tensor()` in a loss
""")
in_words(__name__, counts=(3, 1), model=OutsideHead, wrap=shard_head_apart)("""
full_tensor_in_a_loss_uneven: 2 x minibatch
    `lm_head.weight.full_tensor()` in a loss, with unequal numbers of microbatches
""")


def penalty(user: User) -> None:
    found = sum(p.pow(2).sum() for p in user.model.parameters())
    (found.full_tensor() if hasattr(found, "full_tensor") else found).backward()


def sync_off(user: User, on: bool = False) -> None:
    if user.odc:
        user.model.set_requires_gradient_sync(on)


def sync_on(user: User) -> None:
    sync_off(user, on=True)


def scale(user: User) -> None:
    for p in user.model.parameters():
        p.grad.mul_(0.5)


def add_to(user: User) -> None:
    for p in user.model.parameters():
        if p.grad is not None:
            p.grad.add_(p.detach(), alpha=0.1)


def set_own(user: User) -> None:
    for p in user.model.parameters():
        p.grad = torch.full_like(p.detach(), 0.5)


def retained(user: User) -> None:
    for value in user.losses:
        value.backward(retain_graph=True)


def forward_of_two(user: User) -> None:
    user.number += 1
    user.losses = [user.loss(rank, m) for rank in user.ranks for m in range(2)]


def together(user: User) -> None:
    sum(user.losses).backward()


MORE = (penalty, sync_off, sync_on, scale, add_to, set_own, retained, forward_of_two, together)
in_words(__name__, *MORE, counts=(1, 1))("""
penalty_on_shards: backward penalty finish | a penalty computed on the sharded parameters, outside of a forward pass
""")
in_words(__name__, *MORE)("""
sync_left_off: sync_off backward settle look_at_gradients step publish
    gradient sync off, and left off at the last microbatch
sync_left_off_then_on: sync_off backward publish sync_on minibatch
    gradient sync left off for a minibatch, on in the next one
changed_in_place: backward settle scale step publish | gradients scaled in place after `settle()`
set_after_settle: backward settle add_to step publish | a penalty's gradient added to `.grad` after `settle()`
noise_before_settle: backward add_to finish | something added to `.grad` before `settle()`
own_gradient_before_settle: backward set_own finish | `.grad` set by hand before `settle()`
own_gradient_after_settle: backward settle set_own step publish minibatch | `.grad` set by hand after `settle()`
retained_graph: forward retained go_back settle look_at_gradients step publish | two backward passes through one graph
two_losses: forward_of_two go_back settle look_at_gradients step publish | two forward passes, then two backward passes
one_loss_of_two_passes: forward_of_two together settle look_at_gradients step publish
    two forward passes, one backward pass for both
""")


@habit(counts=(2, 2))
def sync_at_the_last(user: User) -> None:
    """gradient sync off but for the last microbatch"""
    for _ in range(2):
        user.number += 1
        for rank in user.ranks:
            for m in range(2):
                sync_off(user, on=m == 1)
                loss(user.model, rank, m, user.number).backward()
        user.do("settle look_at_gradients step publish")


@habit()
def kept_over_publish(user: User) -> None:
    """`.grad` kept over `publish()`"""
    user.do("backward settle")
    kept = {name: p.grad for name, p in user.model.named_parameters()}
    for words in ("step publish", "minibatch"):
        user.do(words)
        user.seen.append({name: whole(value).clone() for name, value in kept.items()})


@habit()
def kept_local_over_publish(user: User) -> None:
    """`.grad.to_local()` kept over `publish()`"""
    user.do("backward settle")
    kept = [local(p.grad) for p in user.model.parameters()]
    before = [value.clone() for value in kept]
    user.do("step publish minibatch")
    user.seen.append(float(sum((a - b).abs().sum() for a, b in zip(kept, before, strict=True))))


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


def penalized(user: User) -> None:
    """The loss counts how much it depends on its input."""
    user.number += 1
    for rank in user.ranks:
        out = user.model(x := _input(user, rank, 0), 0).logsumexp(-1).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        (out + slope.pow(2).sum()).backward()
    user.do("settle look_at_gradients step publish")


class RecomputedFromInputs(FromInputs):
    def forward(self, x: Tensor, turn: int) -> Tensor:  # noqa: ARG002
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


def keep_root_whole(model: nn.Module) -> None:
    by_layers(model)
    model.set_reshard_after_backward(False, recurse=False)


in_words(__name__, penalized, model=FromInputs)("""
gradient_penalty: penalized | a penalty on gradients, by `create_graph=True`
""")
in_words(__name__, penalized, model=FromInputs, wrap=keep_whole)("""
gradient_penalty_kept_whole: 2 x penalized
    the same where `fully_shard(reshard_after_forward=False)` and `set_reshard_after_backward(False)` keep weights
""")
in_words(__name__, penalized, model=RecomputedFromInputs, wrap=keep_root_whole)("""
gradient_penalty_recomputed: penalized | the same under activation checkpointing, where the root alone keeps its weights
""")


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
    user.do("settle step publish")


@habit()
def tokens_without_gradient(user: User) -> None:
    """a loss that needs no gradient at all"""
    user.number += 1
    with torch.no_grad():
        user.seen.append(user.model(tokens_of(0, 0), 0).sum().item())
    user.finish()
