"""Optimizers of other kinds, and steps of more than one backward pass."""

import torch
from users import User

from habits import habit
from habits.attached import attached, usual


class Own:
    """Steps, and is no optimizer of torch's."""

    def __init__(self, parameters) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        for parameter in self.parameters:
            parameter.data.add_(parameter.grad, alpha=-0.1)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


@habit()
def own_class(user: User) -> None:
    """an optimizer of one's own making attached"""
    user.optimizer = Own(user.model.parameters())
    attached(user)


@habit()
def own_class_by_hand(user: User) -> None:
    """an optimizer of one's own making, `settle()` and `publish()` called"""
    user.optimizer = Own(user.model.parameters())
    user.minibatch()
    user.minibatch()


def _scaled(user: User, scaler: torch.amp.GradScaler) -> None:
    user.number += 1
    for rank in user.ranks:
        for microbatch in range(user.habit.counts[rank]):
            value = scaler.scale(user.loss(rank, microbatch))
            (value * float("inf") if user.number == 1 and rank == 0 else value).backward()
    scaler.unscale_(user.optimizer)
    scaler.step(user.optimizer)
    scaler.update()
    user.zero()


@habit()
def grad_scaler(user: User) -> None:
    """attached: a `GradScaler`, and a gradient that is not finite on one device"""
    attached(user)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(3):
        _scaled(user, scaler)


@habit(how={"check_finite": False})
def grad_scaler_skips(user: User) -> None:
    """attached: the same under `OnDemand(check_finite=False)`: the step is skipped on all devices"""
    attached(user)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(3):
        _scaled(user, scaler)


def _towards(user: User, published: bool) -> None:
    """Gradients are taken where weights are once they have gone up a bit (sharpness-aware minimization)."""
    own = user.optimizer.param_groups[0]["params"]
    user.backward()
    if published:
        user.settle()
    up = [0.05 * p.grad.detach().clone() for p in own]
    with torch.no_grad():
        torch._foreach_add_(own, up)
    user.zero()
    if published:
        user.publish()
    user.backward()
    if published:
        user.settle()
    with torch.no_grad():
        torch._foreach_sub_(own, up)
    user.step()
    user.zero()
    if published:
        user.publish()


@habit()
def two_passes_for_a_step(user: User) -> None:
    """two passes for each step (SAM), weights changed by hand and published in between"""
    for _ in range(2):
        _towards(user, published=True)


@habit()
def two_passes_for_a_step_attached(user: User) -> None:
    """attached: two passes for each step (SAM), weights changed by hand in between, then `zero_grad()`"""
    attached(user)
    for _ in range(2):
        _towards(user, published=False)


@habit()
def group_added(user: User) -> None:
    """attached: a group of parameters added to the optimizer later, all gradients dropped by `model.zero_grad()`"""
    own = list(user.model.parameters())
    user.optimizer = torch.optim.AdamW([{"params": own[:3]}, {"params": own[3:6], "lr": 0.01}], lr=0.02)
    attached(user)
    for _ in range(2):
        user.backward()
        user.clip()
        user.step()
        user.model.zero_grad()
    user.optimizer.add_param_group({"params": own[6:], "weight_decay": 0.0})
    usual(user)
    usual(user)


@habit()
def part_of_the_parameters(user: User) -> None:
    """attached: an optimizer of some of the parameters, the others neither frozen nor dropped"""
    user.optimizer = torch.optim.SGD(list(user.model.parameters())[:3], lr=0.1)
    attached(user)
    usual(user)
    usual(user)


@habit()
def part_by_hand(user: User) -> None:
    """an optimizer of some of the parameters, `settle()` and `publish()` called"""
    user.optimizer = torch.optim.SGD(list(user.model.parameters())[:3], lr=0.1)
    for _ in range(2):
        user.minibatch()
        user.model.zero_grad()


@habit(bound=0.05)
def muon(user: User) -> None:
    """attached: Muon for matrices and AdamW for the others"""
    every = list(user.model.parameters())
    both = [
        torch.optim.Muon([p for p in every if p.ndim == 2], lr=0.002),
        torch.optim.AdamW([p for p in every if p.ndim != 2], lr=0.01),
    ]
    if user.odc:
        user.odc.attach(*both)
    for _ in range(2):
        user.backward()
        user.clip()
        for optimizer in both:
            optimizer.step()
        for optimizer in both:
            optimizer.zero_grad()


class Wrapped(torch.optim.Optimizer):
    """Steps by another one that it has made."""

    def __init__(self, parameters, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.inner = torch.optim.SGD(self.param_groups, lr=lr)

    def up(self) -> None:
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                self.state[p]["before"] = p.detach().clone()
                p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    def down(self) -> None:
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.copy_(self.state[p]["before"])
        self.inner.step()
        self.zero_grad()


def _up_and_down(user: User) -> None:
    user.backward()
    user.optimizer.up()
    user.backward()
    user.optimizer.down()


@habit(optimizer=Wrapped)
def outer_attached(user: User) -> None:
    """an optimizer attached that steps by another, inner one"""
    attached(user)
    _up_and_down(user)


@habit(optimizer=Wrapped)
def inner_attached(user: User) -> None:
    """the inner one attached, and weights published where the outer one has changed them"""
    if user.odc:
        user.odc.attach(user.optimizer.inner)
    for _ in range(2):
        user.backward()
        user.optimizer.up()
        if user.odc:
            user.odc.publish()
        user.backward()
        user.optimizer.down()
        user.optimizer.inner.zero_grad()
