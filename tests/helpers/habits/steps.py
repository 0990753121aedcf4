"""Optimizers of other kinds, and steps of more than one backward pass."""

import torch
from users import User

from habits import habit, in_words
from habits.attached import step_and_clear


class Own:
    """Steps, and is no optimizer of torch's."""

    def __init__(self, parameters, **_) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        for parameter in self.parameters:
            parameter.data.add_(parameter.grad, alpha=-0.1)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


in_words(__name__, optimizer=Own)("""
own_class: attach | an optimizer of one's own making attached
own_class_by_hand: 2 x minibatch | an optimizer of one's own making, `settle()` and `publish()` called
""")


def scaled(user: User) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(3):
        user.number += 1
        for rank in user.ranks:
            for microbatch in range(user.habit.counts[rank]):
                value = scaler.scale(user.loss(rank, microbatch))
                (value * float("inf") if user.number == 1 and rank == 0 else value).backward()
        scaler.unscale_(user.optimizer)
        scaler.step(user.optimizer)
        scaler.update()
        user.zero()


in_words(__name__, scaled)("""
grad_scaler: attach scaled | attached: a `GradScaler`, and a gradient that is not finite on one device
""")
in_words(__name__, scaled, how={"check_finite": False})("""
grad_scaler_skips: attach scaled
    attached: the same under `OnDemand(check_finite=False)`: the step is skipped on all devices
""")


def go_up(user: User) -> None:
    """To where gradients are taken: a bit up (sharpness-aware minimization)."""
    own = user.optimizer.param_groups[0]["params"]
    user.up = [0.05 * p.grad.detach().clone() for p in own]
    with torch.no_grad():
        torch._foreach_add_(own, user.up)


def go_down(user: User) -> None:
    with torch.no_grad():
        torch._foreach_sub_(user.optimizer.param_groups[0]["params"], user.up)


in_words(__name__, go_up, go_down)("""
two_passes_for_a_step: 2 x backward settle go_up zero publish backward settle go_down step zero publish
    two passes for each step (SAM), weights changed by hand and published in between
two_passes_for_a_step_attached: attach; 2 x backward go_up zero backward go_down step zero
    attached: two passes for each step (SAM), weights changed by hand in between, then `zero_grad()`
""")


@habit()
def group_added(user: User) -> None:
    """attached: a group of parameters added to the optimizer later, all gradients dropped by `model.zero_grad()`"""
    own = list(user.model.parameters())
    user.optimizer = torch.optim.AdamW([{"params": own[:3]}, {"params": own[3:6], "lr": 0.01}], lr=0.02)
    user.do("attach; 2 x backward clip step zero_model")
    user.optimizer.add_param_group({"params": own[6:], "weight_decay": 0.0})
    user.do("2 x usual")


def part(user: User) -> None:
    user.optimizer = torch.optim.SGD(list(user.model.parameters())[:3], lr=0.1)


in_words(__name__, part)("""
part_of_the_parameters: part attach; 2 x usual
    attached: an optimizer of some of the parameters, the others neither frozen nor dropped
part_by_hand: part; 2 x minibatch zero_model | an optimizer of some of the parameters, `settle()` and `publish()` called
""")


@habit(bound=0.05)
def muon(user: User) -> None:
    """attached: Muon for matrices and AdamW for the others"""
    every = list(user.model.parameters())
    matrices, others = [p for p in every if p.ndim == 2], [p for p in every if p.ndim != 2]
    both = [torch.optim.Muon(matrices, lr=0.002), torch.optim.AdamW(others, lr=0.01)]
    user.attach(*both)
    for _ in range(2):
        user.do("backward clip")
        step_and_clear(both)


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


@habit(optimizer=Wrapped)
def outer_attached(user: User) -> None:
    """an optimizer attached that steps by another, inner one"""
    user.do("attach backward")
    user.optimizer.up()
    user.backward()
    user.optimizer.down()


@habit(optimizer=Wrapped)
def inner_attached(user: User) -> None:
    """the inner one attached, and weights published where the outer one has changed them"""
    user.attach(user.optimizer.inner)
    for _ in range(2):
        user.backward()
        user.optimizer.up()
        if user.odc:
            user.odc.publish()
        user.backward()
        user.optimizer.down()
        user.optimizer.inner.zero_grad()
