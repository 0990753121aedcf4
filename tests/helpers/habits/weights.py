"""Weights that change otherwise than by a step, and loading."""

import copy

import torch
import torch.distributed as dist
from nets import Net
from torch import nn
from users import User, by_layers, local, whole

from habits import habit


def _then(user: User) -> None:
    """What comes after a change that was not published."""
    user.evaluate()
    user.minibatch()


@habit()
def in_place(user: User) -> None:
    """weights changed in place, without `publish()`"""
    with torch.no_grad():
        for p in user.model.parameters():
            p.mul_(0.5)
    _then(user)


@habit()
def in_place_published(user: User) -> None:
    """weights changed in place, then `publish()`"""
    with torch.no_grad():
        for p in user.model.parameters():
            p.mul_(0.5)
    user.publish()
    _then(user)


@habit()
def data(user: User) -> None:
    """weights changed through `.data`, without `publish()`"""
    for p in user.model.parameters():
        local(p.data).mul_(0.5)
    _then(user)


@habit()
def data_published(user: User) -> None:
    """weights changed through `.data`, then `publish()`"""
    for p in user.model.parameters():
        local(p.data).mul_(0.5)
    user.publish()
    _then(user)


class Bounded(Net):
    """Its embedding is scaled down in forward passes, where it is too large."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding.max_norm = 1.0


@habit(model=Bounded)
def changed_by_forward(user: User) -> None:
    """weights changed by forward passes, as `nn.Embedding(max_norm=...)` does"""
    user.minibatch()
    user.minibatch()


class Counting(Net):
    """Counts its forward passes in a parameter that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, tokens, turn):
        self.passes += 1
        return super().forward(tokens, turn)


@habit(model=Counting)
def counted_by_forward(user: User) -> None:
    """a frozen parameter that forward passes change"""
    user.minibatch()


class CountingInBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(3))

    def forward(self, tokens, turn):
        self.passes += 1
        return super().forward(tokens, turn)


@habit(model=CountingInBuffer)
def counted_in_a_buffer(user: User) -> None:
    """a buffer that forward passes change"""
    user.minibatch()
    user.minibatch()


@habit()
def one_element(user: User) -> None:
    """a single weight changed through `.data`, without `publish()`"""
    if user.rank in (None, 0):
        local(user.model.layers[1].up.weight.data)[0, 0] = 3.0
    _then(user)


@habit()
def data_after_an_evaluation(user: User) -> None:
    """weights changed through `.data` after an evaluation has left units whole"""
    own = user.optimizer.param_groups[0]["params"]
    user.evaluate()
    for p in own:
        local(p.data).mul_(0.5)
    _then(user)


@habit()
def data_inside(user: User) -> None:
    """weights changed through `.data` between two microbatches"""
    user.backward()
    for p in user.model.parameters():
        local(p.data).mul_(0.5)
    user.backward()
    user.finish()


def _spread(user: User) -> None:
    """Device 0's rows to all devices."""
    weight = local(user.model.layers[1].up.weight).detach()
    if user.odc:
        dist.broadcast(weight, 0)
    else:
        weight[7:] = weight[:7].clone()


@habit()
def broadcast_inside(user: User) -> None:
    """`dist.broadcast` into `to_local()` between two microbatches"""
    user.backward()
    _spread(user)
    user.backward()
    user.finish()


@habit()
def broadcast(user: User) -> None:
    """`dist.broadcast` into `to_local()`, without `publish()`"""
    _spread(user)
    _then(user)


@habit()
def broadcast_published(user: User) -> None:
    """`dist.broadcast` into `to_local()`, then `publish()`"""
    _spread(user)
    user.publish()
    _then(user)


@habit()
def averaged(user: User) -> None:
    """an average of weights swapped in for an evaluation, through `.data`, each time published"""
    own = list(user.model.parameters())
    before = [local(p).detach().clone() for p in own]
    user.minibatch()
    now = [local(p).detach().clone() for p in own]
    for p, one, other in zip(own, before, now, strict=True):
        local(p.data).copy_(0.5 * (one + other))
    user.publish()
    user.evaluate()
    for p, value in zip(own, now, strict=True):
        local(p.data).copy_(value)
    user.publish()
    user.minibatch()


@habit()
def loaded(user: User) -> None:
    """`load_state_dict`, without `publish()`"""
    user.model.load_state_dict({k: 0.5 * v for k, v in user.model.state_dict().items()})
    _then(user)


@habit()
def loaded_published(user: User) -> None:
    """`load_state_dict`, then `publish()`"""
    user.model.load_state_dict({k: 0.5 * v for k, v in user.model.state_dict().items()})
    user.publish()
    _then(user)


@habit()
def assigned(user: User) -> None:
    """`load_state_dict(assign=True)`, without `publish()`"""
    user.model.load_state_dict({k: 0.5 * v for k, v in user.model.state_dict().items()}, assign=True)
    user.evaluate()


@habit()
def assigned_published(user: User) -> None:
    """`load_state_dict(assign=True)`, then `publish()` and a new optimizer"""
    user.model.load_state_dict({k: 0.5 * v for k, v in user.model.state_dict().items()}, assign=True)
    user.publish()
    user.optimizer = user.new_optimizer()
    _then(user)


@habit()
def assigned_optimizer_kept(user: User) -> None:
    """`load_state_dict(assign=True)`, `publish()`, and the optimizer of the parameters there were"""
    user.model.load_state_dict({k: 0.5 * v for k, v in user.model.state_dict().items()}, assign=True)
    user.publish()
    user.minibatch()


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
    from torch.distributed.checkpoint.state_dict import get_state_dict

    get_state_dict(user.model, user.optimizer)
    user.publish()
    user.minibatch()


@habit()
def saved_whole(user: User) -> None:
    """`full_tensor()` of every weight after the step, before `publish()`"""
    user.backward()
    user.settle()
    user.step()
    user.seen.append({name: whole(p) for name, p in user.model.named_parameters()})
    user.publish()
    user.minibatch()


@habit()
def saved_inside(user: User) -> None:
    """state_dict between two microbatches"""
    user.backward((1, 1))
    user.seen.append({name: whole(p) for name, p in user.model.state_dict().items()})
    user.backward()
    user.finish()


@habit()
def only_one_publishes(user: User) -> None:
    """one device publishes without settling"""
    user.backward()
    if user.rank == 1:
        user.publish()
    user.finish()


@habit()
def one_publishes_twice(user: User) -> None:
    """one device publishes once more than the others"""
    user.minibatch()
    if user.rank == 1:
        user.publish()
    user.minibatch()


@habit()
def one_settles_first(user: User) -> None:
    """one device settles where the other publishes"""
    if user.rank == 1:
        user.settle()
    user.publish()
    user.minibatch()


@habit()
def optimizer_after_an_evaluation(user: User) -> None:
    """an optimizer made after an evaluation has left units whole"""
    user.evaluate()
    user.optimizer = user.new_optimizer()
    user.minibatch()


@habit()
def moved(user: User) -> None:
    """`model.to(device)` once more"""
    user.model.to("cpu")
    user.minibatch()


@habit()
def cast(user: User) -> None:
    """`model.to(torch.float64)` after `OnDemand`, then `publish()`"""
    user.model.to(torch.float64)
    user.publish()
    user.minibatch()


@habit()
def cast_for_another(user: User) -> None:
    """`close()`, `model.to(torch.float64)`, and another `OnDemand`"""
    if user.odc:
        user.odc.close()
    user.model.to(torch.float64)
    user.reopen()
    user.minibatch()


def _cast_first(model: nn.Module) -> None:
    by_layers(model.to(torch.float64))


@habit(wrap=_cast_first)
def cast_before(user: User) -> None:
    """`model.to(torch.float64)` before `fully_shard`"""
    user.minibatch()
    user.minibatch()


@habit()
def unsharded_by_hand(user: User) -> None:
    """`unshard()` by hand before the step, weights published after it"""
    user.backward()
    user.settle()
    user.step()
    if user.odc:
        user.publish()
        user.model.unshard()
        user.model.reshard()
    else:
        user.publish()
    user.evaluate()


@habit(optimizer=torch.optim.AdamW)
def two_optimizers(user: User) -> None:
    """two optimizers of different parameters"""
    own = list(user.model.parameters())
    half = [torch.optim.AdamW(part, lr=0.01) for part in (own[::2], own[1::2])]
    for _ in range(2):
        user.backward()
        user.settle()
        for each in half:
            each.step()
        for each in half:
            each.zero_grad()
        user.publish()


@habit()
def other_model(user: User) -> None:
    """an optimizer of another model steps in between"""
    other = torch.nn.Linear(2, 2)
    step = torch.optim.SGD(other.parameters(), lr=0.1)
    user.backward()
    other(torch.ones(2)).sum().backward()
    step.step()
    user.finish()
    user.evaluate()
