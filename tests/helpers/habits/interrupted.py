"""What is interrupted, and who comes late."""

import contextlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from users import User

from habits import habit, in_words
from odcsim.errors import InputError


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


def _fails(user: User, module: nn.Module, how: str, rank: int, microbatch: int = 5) -> None:
    """A microbatch whose forward or backward pass raises in a module."""
    if how == "forward":
        hook = module.register_forward_pre_hook(_trip_in_forward)
    else:
        hook = module.register_forward_hook(lambda _m, _i, out: Trip.apply(out))
    with contextlib.suppress(ValueError):
        user.loss(rank, microbatch).backward()
    hook.remove()


def _again(user: User, module: nn.Module, how: str) -> None:
    """The first microbatch fails once, and is tried again."""
    user.number += 1
    for rank in user.ranks:
        for microbatch in range(user.habit.counts[rank]):
            if user.odc and rank == microbatch == 0:
                _fails(user, module, how, rank, microbatch)
            user.loss(rank, microbatch).backward()
    user.do("settle look_at_gradients step publish minibatch")


PARTS = ("layers.1.up", "head", "embedding")


def again_forward(user: User, part: tuple[int] = (0,)) -> None:
    _again(user, user.model.get_submodule(PARTS[part[0]]), "forward")


def again_backward(user: User, part: tuple[int] = (0,)) -> None:
    _again(user, user.model.get_submodule(PARTS[part[0]]), "backward")


in_words(__name__, again_forward, again_backward)("""
forward_of_a_layer: again_forward:0 | an exception in a layer's forward, the microbatch tried again
forward_of_the_head: again_forward:1 | an exception in the head's forward, the microbatch tried again
backward_of_the_head: again_backward:1 | an exception at the beginning of backward, the microbatch tried again
backward_of_a_layer: again_backward:0 | an exception inside a layer's backward, the microbatch tried again
backward_of_the_embedding: again_backward:2 | an exception at the end of backward, the microbatch tried again
""")


def fails_forward(user: User) -> None:
    """On device 0, of a microbatch that is left out."""
    if user.odc and user.rank == 0:
        _fails(user, user.model.layers[1].up, "forward", 0)


def fails_backward(user: User) -> None:
    if user.odc and user.rank == 0:
        _fails(user, user.model.layers[1].up, "backward", 0)


def reset(user: User) -> None:
    user.model.reset_iter_state()


in_words(__name__, fails_forward, fails_backward)("""
last_skipped_after_forward: backward fails_forward finish minibatch
    an exception inside the last forward, the microbatch left out
skipped_after_backward: backward:1,1 fails_backward finish | an exception inside backward, the microbatch left out
forward_without_backward: forward; 2 x minibatch | forward passes whose losses are dropped
""")
in_words(__name__, fails_backward, reset, calls="reset_iter_state")("""
reset_after_backward: backward:1,1 fails_backward reset@0 finish
    an exception inside backward, `reset_iter_state()`, the microbatch left out
""")


@habit()
def skipped_after_forward(user: User) -> None:
    """an exception inside forward, the microbatch left out"""
    user.number += 1
    for rank in user.ranks:
        fails_forward(user)
        user.loss(rank, 0).backward()
    user.finish()


@habit()
def dropped_after_backward(user: User) -> None:
    """an exception inside backward, the minibatch dropped by `publish()` on all devices"""
    if user.odc:
        user.do("backward:1,1 fails_backward publish", fails_backward)
    user.number = 0
    user.do("2 x minibatch")


@habit()
def refused_then_dropped(user: User) -> None:
    """`settle()` refused on all devices, the minibatch dropped by `publish()`"""
    if user.odc:
        user.do("backward zero@0")
        try:
            user.settle()
        except InputError:
            user.publish()
        user.number = -1
    user.minibatch()


@habit()
def backward_to_the_input(user: User) -> None:
    """`torch.autograd.grad` of one layer's output alone"""
    user.minibatch()
    user.number += 1
    x = torch.ones(3, 7, dtype=user.dtype, requires_grad=True)
    out = user.model.layers[1](x)
    user.seen.append(torch.autograd.grad(out.sum(), x)[0].sum().item())
    user.do("zero_model publish minibatch")


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


in_words(__name__, collectives, counts=(3, 1), how={"timeout": 2.0})("""
metrics_for_each_microbatch: collectives finish | a collective for each microbatch, with unequal numbers of microbatches
""")


@habit(counts=(2, 2))
def metrics_for_equal_microbatches(user: User) -> None:
    """a collective for each microbatch, with equal numbers of microbatches"""
    user.number += 1
    for rank in user.ranks:
        for m in range(2):
            value = user.loss(rank, m)
            value.backward()
            if user.odc:
                dist.all_reduce(value.detach().clone())
    user.finish()


def all_reduce(user: User) -> None:
    if user.odc:
        dist.all_reduce(torch.ones(1))


def wait(user: User) -> None:  # noqa: ARG001
    time.sleep(0.05)


in_words(__name__, all_reduce, wait)("""
metrics_after_settle: backward settle all_reduce step publish | a collective of metrics after `settle()`
late_device: 2 x wait@1 backward wait@0 settle clip step wait@1 publish evaluate | a device that is late for everything
""")


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


in_words(__name__, interrupt_settle)("""
settle_again: minibatch backward interrupt_settle finish | `settle()` interrupted by Ctrl-C, and called again
""")


@habit()
def settle_interrupted_and_made_anew(user: User) -> None:
    """`settle()` interrupted by Ctrl-C, and another OnDemand made on all devices, after `close()`"""
    user.minibatch()
    if user.odc:
        user.do("backward interrupt_settle", interrupt_settle)
        user.odc.close()
        user.do("zero reopen")
        user.number -= 1
    user.do("2 x minibatch")
