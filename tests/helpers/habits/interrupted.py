"""What is interrupted, and who comes late."""

import contextlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from users import User

from habits import habit


class Trip(torch.autograd.Function):
    """Fails in a backward pass."""

    @staticmethod
    def forward(_, x):
        return x.view_as(x)

    @staticmethod
    def backward(*_):
        raise ValueError("tripped")


def _trip_in_forward(*_):
    raise ValueError("tripped")


def _fails(user: User, module: nn.Module, how: str, rank: int, microbatch: int) -> None:
    """A microbatch whose forward or backward pass raises in a module."""
    if how == "forward":
        hook = module.register_forward_pre_hook(_trip_in_forward)
    else:
        hook = module.register_forward_hook(lambda _m, _i, out: Trip.apply(out))
    try:
        user.loss(rank, microbatch).backward()
    except ValueError:
        pass
    finally:
        hook.remove()


def _again(user: User, module: nn.Module, how: str) -> None:
    """The first microbatch fails once, and is tried again."""
    user.number += 1
    for rank in user.ranks:
        for microbatch in range(user.habit.counts[rank]):
            if user.odc and rank == microbatch == 0:
                _fails(user, module, how, rank, microbatch)
            user.loss(rank, microbatch).backward()
    user.settle()
    user.look_at_gradients()
    user.step()
    user.publish()
    user.minibatch()


@habit()
def forward_of_a_layer(user: User) -> None:
    """an exception in a layer's forward, the microbatch tried again"""
    _again(user, user.model.layers[1].up, "forward")


@habit()
def forward_of_the_head(user: User) -> None:
    """an exception in the head's forward, the microbatch tried again"""
    _again(user, user.model.head, "forward")


@habit()
def backward_of_the_head(user: User) -> None:
    """an exception at the beginning of backward, the microbatch tried again"""
    _again(user, user.model.head, "backward")


@habit()
def backward_of_a_layer(user: User) -> None:
    """an exception inside a layer's backward, the microbatch tried again"""
    _again(user, user.model.layers[1].up, "backward")


@habit()
def backward_of_the_embedding(user: User) -> None:
    """an exception at the end of backward, the microbatch tried again"""
    _again(user, user.model.embedding, "backward")


@habit()
def skipped_after_forward(user: User) -> None:
    """an exception inside forward, the microbatch left out"""
    user.number += 1
    for rank in user.ranks:
        if user.odc and rank == 0:
            _fails(user, user.model.layers[1].up, "forward", rank, 5)
        user.loss(rank, 0).backward()
    user.finish()


@habit()
def last_skipped_after_forward(user: User) -> None:
    """an exception inside the last forward, the microbatch left out"""
    user.backward()
    if user.odc and user.rank == 0:
        _fails(user, user.model.layers[1].up, "forward", 0, 5)
    user.finish()
    user.minibatch()


@habit()
def skipped_after_backward(user: User) -> None:
    """an exception inside backward, the microbatch left out"""
    user.number += 1
    for rank in user.ranks:
        user.loss(rank, 0).backward()
        if user.odc and rank == 0:
            _fails(user, user.model.layers[1].up, "backward", rank, 5)
    user.finish()


@habit(calls="reset_iter_state")
def reset_after_backward(user: User) -> None:
    """an exception inside backward, `reset_iter_state()`, the microbatch left out"""
    user.number += 1
    for rank in user.ranks:
        user.loss(rank, 0).backward()
        if user.odc and rank == 0:
            _fails(user, user.model.layers[1].up, "backward", rank, 5)
            user.model.reset_iter_state()
    user.finish()


@habit()
def dropped_after_backward(user: User) -> None:
    """an exception inside backward, the minibatch dropped by `publish()` on all devices"""
    user.number += 1
    if user.odc:
        for rank in user.ranks:
            user.loss(rank, 0).backward()
            if rank == 0:
                _fails(user, user.model.layers[1].up, "backward", rank, 5)
        user.publish()
    user.minibatch()
    user.minibatch()


@habit()
def refused_then_dropped(user: User) -> None:
    """`settle()` refused on all devices, the minibatch dropped by `publish()`"""
    from odcsim.errors import InputError

    if user.odc:
        user.backward()
        if user.rank == 0:
            user.zero()
        try:
            user.settle()
        except InputError:
            user.publish()
        user.number = -1
    user.minibatch()


@habit()
def forward_without_backward(user: User) -> None:
    """forward passes whose losses are dropped"""
    user.number += 1
    for rank in user.ranks:
        user.loss(rank, 0)
    user.minibatch()
    user.minibatch()


@habit()
def backward_to_the_input(user: User) -> None:
    """`torch.autograd.grad` of one layer's output alone"""
    user.minibatch()
    user.number += 1
    x = torch.ones(3, 7, dtype=user.dtype, requires_grad=True)
    out = user.model.layers[1](x)
    user.seen.append(torch.autograd.grad(out.sum(), x)[0].sum().item())
    user.model.zero_grad()
    user.publish()
    user.minibatch()


@habit(counts=(3, 1), how={"timeout": 2.0})
def metrics_for_each_microbatch(user: User) -> None:
    """a collective for each microbatch, with unequal numbers of microbatches"""
    collectives(user)
    user.finish()


def collectives(user: User) -> None:
    group = dist.new_group(timeout=timedelta(seconds=4)) if user.odc else None
    user.number += 1
    for rank in user.ranks:
        for m in range(user.habit.counts[rank]):
            value = user.loss(rank, m)
            value.backward()
            if user.odc:
                with contextlib.suppress(RuntimeError):  # gloo's own end of waiting
                    dist.all_reduce(value.detach().clone(), group=group)


@habit(counts=(2, 2))
def metrics_for_equal_microbatches(user: User) -> None:
    """a collective for each microbatch, with equal numbers of microbatches"""
    user.number += 1
    for rank in user.ranks:
        for m in range(user.habit.counts[rank]):
            value = user.loss(rank, m)
            value.backward()
            if user.odc:
                dist.all_reduce(value.detach().clone())
    user.finish()


@habit()
def metrics_after_settle(user: User) -> None:
    """a collective of metrics after `settle()`"""
    user.backward()
    user.settle()
    if user.odc:
        dist.all_reduce(torch.ones(1))
    user.step()
    user.publish()


@habit()
def late_device(user: User) -> None:
    """a device that is late for everything"""
    for _ in range(2):
        if user.rank == 1:
            time.sleep(0.05)
        user.backward()
        if user.rank == 0:
            time.sleep(0.05)
        user.settle()
        user.clip()
        user.step()
        if user.rank == 1:
            time.sleep(0.05)
        user.publish()
        user.evaluate()


@habit(how={"timeout": 1.0})
def one_stops_early(user: User) -> None:
    """a device that has fewer minibatches than the others"""
    user.minibatch()
    if user.rank != 1:
        user.minibatch()


@habit()
def unequal_evaluation(user: User) -> None:
    """evaluations of unequal lengths"""
    for _ in range(2):
        user.minibatch()
        if user.odc and user.rank == 0:
            user.evaluate(microbatches=5)
            del user.seen[-5:]


def interrupt_settle(user: User) -> None:
    """Ctrl-C on all, when none is in a pass any more: else those would hear of it there."""
    if user.odc:
        meet = user.odc.arena.meet

        def interrupted() -> None:
            user.odc.arena.meet = meet
            meet()
            raise KeyboardInterrupt

        user.odc.arena.meet = interrupted
        with contextlib.suppress(KeyboardInterrupt):
            user.settle()


@habit()
def settle_again(user: User) -> None:
    """`settle()` interrupted by Ctrl-C, and called again"""
    user.minibatch()
    user.backward()
    interrupt_settle(user)
    user.finish()


@habit()
def settle_interrupted_and_made_anew(user: User) -> None:
    """`settle()` interrupted by Ctrl-C, and another OnDemand made on all devices, after `close()`"""
    user.minibatch()
    if user.odc:
        user.backward()
        interrupt_settle(user)
        user.odc.close()
        user.zero()
        user.reopen()
        user.number -= 1
    user.minibatch()
    user.minibatch()
