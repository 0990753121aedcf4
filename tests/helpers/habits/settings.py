"""Settings of FSDP2, and other hands in it."""

import warnings
from functools import partial

import torch
from nets import Dropping
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from users import User, by_layers

from habits import habit, in_words
from odc_engine import OnDemand


def keep_whole(model: nn.Module) -> None:
    by_layers(model, reshard_after_forward=False)
    model.set_reshard_after_backward(False)


def divided(model: nn.Module, by: float = 4.0) -> None:
    by_layers(model)
    for module in (*model.layers, model):
        module.set_gradient_divide_factor(by)


def _hooked(model: nn.Module) -> None:
    by_layers(model)
    model.set_all_reduce_hook(lambda reduced: reduced.mul_(0.5))


OFFLOADED = partial(by_layers, offload_policy=CPUOffloadPolicy(pin_memory=False))
IN_HALF_PRECISION = partial(by_layers, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
in_words(__name__, wrap=partial(by_layers, reshard_after_forward=False))("""
kept_whole: minibatch evaluate minibatch | `reshard_after_forward=False`
""")
in_words(__name__, wrap=keep_whole)("""
kept_whole_after_backward: minibatch evaluate minibatch | `set_reshard_after_backward(False)`
""")
in_words(__name__, wrap=divided)("""
divide_factor_before: minibatch | `set_gradient_divide_factor` before `OnDemand(average=False)`
""")
in_words(__name__, wrap=partial(divided, by=1.0))("""
divide_factor_one: minibatch | `set_gradient_divide_factor(1.0)` before `OnDemand`, as torchtitan does
""")
in_words(__name__, wrap=_hooked)("""
all_reduce_hook: minibatch | `set_all_reduce_hook`
""")
in_words(__name__, wrap=IN_HALF_PRECISION)("""
in_half_precision: minibatch | `MixedPrecisionPolicy(param_dtype=torch.float16)`
""")
in_words(__name__, wrap=OFFLOADED)("""
offloaded: 2 x minibatch | `CPUOffloadPolicy`
""")


@habit()
def not_last_backward(user: User) -> None:
    """`set_is_last_backward(False)` for all but the last microbatch"""
    for _ in range(2):
        user.number += 1
        for rank in user.ranks:
            for m in range(user.habit.counts[rank]):
                if user.odc:
                    user.model.set_is_last_backward(m == user.habit.counts[rank] - 1)
                user.loss(rank, m).backward()
        user.finish()


@habit()
def never_last_backward(user: User) -> None:
    """`set_is_last_backward(False)`, left so"""
    if user.odc:
        user.model.set_is_last_backward(False)
    user.do("2 x minibatch")


def _weighed(user: User, ranks: int) -> None:
    """A minibatch whose losses are weighed for gradients that are divided."""
    user.number += 1
    for rank in user.ranks:
        for m in range(user.habit.counts[rank]):
            value = user.loss(rank, m)
            (ranks * value if user.odc else value).backward()
    user.do("settle look_at_gradients step publish")


@habit(how={"average": True})
def averaged(user: User) -> None:
    """`OnDemand` without `average=False`, losses weighed for stock FSDP2's means"""
    _weighed(user, 2)
    _weighed(user, 2)


@habit(wrap=divided, how={"average": True})
def divide_factor_kept(user: User) -> None:
    """`set_gradient_divide_factor` before `OnDemand`, losses weighed for it"""
    _weighed(user, 4)


@habit()
def divide_factor_later(user: User) -> None:
    """`set_gradient_divide_factor` after `OnDemand`"""
    if user.odc:
        user.model.set_gradient_divide_factor(4.0)
    user.do("2 x minibatch")


@habit(model=Dropping, calls="set_reduce_scatter_unused_params")
def unused_packed_later(user: User) -> None:
    """`set_reduce_scatter_unused_params(True)` after `OnDemand`"""
    if user.odc:
        user.model.set_reduce_scatter_unused_params(True)
    user.minibatch()


@habit()
def own_communication_later(user: User) -> None:
    """`set_custom_reduce_scatter` after `OnDemand`"""
    if user.odc:
        user.model.set_custom_reduce_scatter(DefaultReduceScatter())
    user.minibatch()


@habit()
def step_in_backward(user: User) -> None:
    """a hook that steps inside backward, made after `OnDemand`"""
    for p in user.model.parameters():
        p.register_post_accumulate_grad_hook(_step_at_once)
    user.do("backward:1,0 settle publish")


def _step_at_once(parameter: nn.Parameter) -> None:
    with torch.no_grad():
        parameter.add_(parameter.grad, alpha=-0.1)
    parameter.grad = None


@habit()
def optimizer_in_backward(user: User) -> None:
    """an optimizer for each parameter inside backward, as `torch.distributed.optim` puts it there"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, when its own module is imported
        from torch.distributed.optim import _apply_optimizer_in_backward as apply
    apply(torch.optim.SGD, user.model.parameters(), {"lr": 0.1})
    user.do("backward:1,0 settle publish")


@habit()
def counting_hooks(user: User) -> None:
    """hooks on parameters that count gradients and read none"""
    came = []
    for p in user.model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: came.append(1))
    user.do("2 x minibatch")


def double_by_hooks(user: User) -> None:
    for p in user.model.parameters():
        p.register_hook(lambda g: 2 * g)


in_words(__name__, double_by_hooks)("""
gradient_hooks: double_by_hooks minibatch | tensor hooks on parameters that change gradients
""")


@habit()
def another_on_demand(user: User) -> None:
    """a second `OnDemand` of the same model"""
    if user.odc:
        OnDemand(user.model, timeout=5)
    user.minibatch()


@habit()
def closed_inside(user: User) -> None:
    """`close()` between backward and the step, stock training on"""
    user.backward((1, 1))
    if user.odc:
        user.odc.close()
        user.odc = None
    user.step()


in_words(__name__, counts=(1, 1))("""
closed_then_stock: minibatch go_on_without evaluate backward step zero evaluate | `close()`, stock training on
""")
