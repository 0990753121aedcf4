"""Weights that change otherwise than by a step, and loading."""

import copy

import torch
import torch.distributed as dist
from nets import Net
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from users import User, by_layers, local, whole

from habits import habit, in_words
from habits.attached import step_and_clear


def in_place(user: User) -> None:
    with torch.no_grad():
        for p in user.model.parameters():
            p.mul_(0.5)


def spread(user: User) -> None:
    """Device 0's rows to all devices."""
    weight = local(user.model.layers[1].up.weight).detach()
    if user.odc:
        dist.broadcast(weight, 0)
    else:
        weight[7:] = weight[:7].clone()


def save_whole(user: User) -> None:
    user.seen.append({name: whole(p) for name, p in user.model.named_parameters()})


def cast_all(user: User) -> None:
    user.model.to(torch.float64)


in_words(__name__, in_place, spread, save_whole, cast_all)("""
in_place: in_place evaluate minibatch | weights changed in place, without `publish()`
in_place_published: in_place publish evaluate minibatch | weights changed in place, then `publish()`
data: halve evaluate minibatch | weights changed through `.data`, without `publish()`
data_published: halve publish evaluate minibatch | weights changed through `.data`, then `publish()`
data_inside: backward halve backward finish | weights changed through `.data` between two microbatches
broadcast_inside: backward spread backward finish | `dist.broadcast` into `to_local()` between two microbatches
broadcast: spread evaluate minibatch | `dist.broadcast` into `to_local()`, without `publish()`
broadcast_published: spread publish evaluate minibatch | `dist.broadcast` into `to_local()`, then `publish()`
loaded: load_half evaluate minibatch | `load_state_dict`, without `publish()`
loaded_published: load_half publish evaluate minibatch | `load_state_dict`, then `publish()`
assigned: assign_half evaluate | `load_state_dict(assign=True)`, without `publish()`
assigned_published: assign_half publish renew evaluate minibatch
    `load_state_dict(assign=True)`, then `publish()` and a new optimizer
assigned_optimizer_kept: assign_half publish minibatch
    `load_state_dict(assign=True)`, `publish()`, and the optimizer of the parameters there were
saved_whole: backward settle step save_whole publish minibatch
    `full_tensor()` of every weight after the step, before `publish()`
only_one_publishes: backward publish@1 finish | one device publishes without settling
one_publishes_twice: minibatch publish@1 minibatch | one device publishes once more than the others
one_settles_first: settle@1 publish minibatch | one device settles where the other publishes
optimizer_after_an_evaluation: evaluate renew minibatch | an optimizer made after an evaluation has left units whole
cast: cast_all publish minibatch | `model.to(torch.float64)` after `OnDemand`, then `publish()`
""")


class Bounded(Net):
    """Its embedding is scaled down in forward passes, where it is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding.max_norm = 1.0


in_words(__name__, model=Bounded)("""
changed_by_forward: 2 x minibatch | weights changed by forward passes, as `nn.Embedding(max_norm=...)` does
""")


class Counting(Net):
    """Counts its forward passes in a parameter that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, tokens, turn):
        self.passes += 1
        return super().forward(tokens, turn)


in_words(__name__, model=Counting)("""
counted_by_forward: minibatch | a frozen parameter that forward passes change
""")


class CountingInBuffer(Counting):
    def __init__(self) -> None:
        super().__init__()
        del self.passes
        self.register_buffer("passes", torch.zeros(3))


in_words(__name__, model=CountingInBuffer)("""
counted_in_a_buffer: 2 x minibatch | a buffer that forward passes change
""")


@habit()
def one_element(user: User) -> None:
    """a single weight changed through `.data`, without `publish()`"""
    if user.rank in (None, 0):
        local(user.model.layers[1].up.weight.data)[0, 0] = 3.0
    user.do("evaluate minibatch")


@habit()
def data_after_an_evaluation(user: User) -> None:
    """weights changed through `.data` after an evaluation has left units whole"""
    user.evaluate()
    for p in user.optimizer.param_groups[0]["params"]:
        local(p.data).mul_(0.5)
    user.do("evaluate minibatch")


@habit()
def averaged(user: User) -> None:
    """an average of weights swapped in for an evaluation, through `.data`, each time published"""
    own = list(user.model.parameters())
    before = [local(p).detach().clone() for p in own]
    user.minibatch()
    now = [local(p).detach().clone() for p in own]
    for p, one, other in zip(own, before, now, strict=True):
        local(p.data).copy_(0.5 * (one + other))
    user.do("publish evaluate")
    for p, value in zip(own, now, strict=True):
        local(p.data).copy_(value)
    user.do("publish minibatch")


@habit(optimizer=torch.optim.AdamW)
def stopped_and_resumed(user: User) -> None:
    """model and optimizer saved, trained on, loaded, published"""
    user.minibatch()
    saved = copy.deepcopy((user.model.state_dict(), user.optimizer.state_dict()))
    user.minibatch()
    user.model.load_state_dict(saved[0])
    user.optimizer.load_state_dict(saved[1])
    user.publish()
    user.number = 0
    user.minibatch()


@habit(optimizer=torch.optim.AdamW)
def distributed_checkpoint(user: User) -> None:
    """state_dicts of `torch.distributed.checkpoint`, which make an optimizer step of nothing"""
    get_state_dict(user.model, user.optimizer)
    user.do("publish minibatch")


@habit()
def saved_inside(user: User) -> None:
    """state_dict between two microbatches"""
    user.backward((1, 1))
    user.seen.append({name: whole(p) for name, p in user.model.state_dict().items()})
    user.do("backward finish")


@habit()
def moved(user: User) -> None:
    """`model.to(device)` once more"""
    user.model.to("cpu")
    user.minibatch()


@habit()
def cast_for_another(user: User) -> None:
    """`close()`, `model.to(torch.float64)`, and another `OnDemand`"""
    if user.odc:
        user.odc.close()
    user.do("cast_all reopen minibatch", cast_all)


def _cast_first(model: nn.Module) -> None:
    by_layers(model.to(torch.float64))


in_words(__name__, wrap=_cast_first)("""
cast_before: 2 x minibatch | `model.to(torch.float64)` before `fully_shard`
""")


@habit()
def unsharded_by_hand(user: User) -> None:
    """`unshard()` by hand before the step, weights published after it"""
    user.do("backward settle step publish")
    if user.odc:
        user.model.unshard()
        user.model.reshard()
    user.evaluate()


@habit(optimizer=torch.optim.AdamW)
def two_optimizers(user: User) -> None:
    """two optimizers of different parameters"""
    own = list(user.model.parameters())
    half = [torch.optim.AdamW(part, lr=0.01) for part in (own[::2], own[1::2])]
    for _ in range(2):
        user.do("backward settle")
        step_and_clear(half)
        user.publish()


@habit()
def other_model(user: User) -> None:
    """an optimizer of another model steps in between"""
    other = torch.nn.Linear(2, 2)
    step = torch.optim.SGD(other.parameters(), lr=0.1)
    user.backward()
    other(torch.ones(2)).sum().backward()
    step.step()
    user.do("finish evaluate")
