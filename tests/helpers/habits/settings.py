"""Settings of FSDP2, and other hands in it."""

import warnings

import torch
from nets import Dropping
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from users import User

from habits import habit


def _keep_whole(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model, reshard_after_forward=False)


def keep_whole(model: nn.Module) -> None:
    _keep_whole(model)
    model.set_reshard_after_backward(False)


@habit(wrap=_keep_whole)
def kept_whole(user: User) -> None:
    """`reshard_after_forward=False`"""
    user.minibatch()
    user.evaluate()
    user.minibatch()


@habit(wrap=keep_whole)
def kept_whole_after_backward(user: User) -> None:
    """`set_reshard_after_backward(False)`"""
    user.minibatch()
    user.evaluate()
    user.minibatch()


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
    user.minibatch()
    user.minibatch()


def _weighed(user: User, ranks: int) -> None:
    """A minibatch until it is settled, losses weighed for gradients that are divided."""
    user.number += 1
    for rank in user.ranks:
        for m in range(user.habit.counts[rank]):
            value = user.loss(rank, m)
            (ranks * value if user.odc else value).backward()
    user.settle()


@habit(how={"average": True})
def averaged(user: User) -> None:
    """`OnDemand` without `average=False`, losses weighed for stock FSDP2's means"""
    for _ in range(2):
        _weighed(user, 2)
        user.look_at_gradients()
        user.step()
        user.publish()


@habit()
def divide_factor_later(user: User) -> None:
    """`set_gradient_divide_factor` after `OnDemand`"""
    if user.odc:
        user.model.set_gradient_divide_factor(4.0)
    user.minibatch()
    user.minibatch()


def divided(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    for module in (*model.layers, model):
        module.set_gradient_divide_factor(4.0)


@habit(wrap=divided)
def divide_factor_before(user: User) -> None:
    """`set_gradient_divide_factor` before `OnDemand(average=False)`"""
    user.minibatch()


@habit(wrap=divided, how={"average": True})
def divide_factor_kept(user: User) -> None:
    """`set_gradient_divide_factor` before `OnDemand`, losses weighed for it"""
    _weighed(user, 4)
    user.look_at_gradients()
    user.step()
    user.publish()


def _divide_by_one(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    for module in (*model.layers, model):
        module.set_gradient_divide_factor(1.0)


@habit(wrap=_divide_by_one)
def divide_factor_one(user: User) -> None:
    """`set_gradient_divide_factor(1.0)` before `OnDemand`, as torchtitan does"""
    user.minibatch()


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
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

        user.model.set_custom_reduce_scatter(DefaultReduceScatter())
    user.minibatch()


def _hooked(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.set_all_reduce_hook(lambda reduced: reduced.mul_(0.5))


@habit(wrap=_hooked)
def all_reduce_hook(user: User) -> None:
    """`set_all_reduce_hook`"""
    user.minibatch()


def _offloaded(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer, offload_policy=CPUOffloadPolicy(pin_memory=False))
    fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))


def _in_half_precision(model: nn.Module) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.float16)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


@habit(wrap=_in_half_precision)
def in_half_precision(user: User) -> None:
    """`MixedPrecisionPolicy(param_dtype=torch.float16)`"""
    user.minibatch()


@habit(wrap=_offloaded)
def offloaded(user: User) -> None:
    """`CPUOffloadPolicy`"""
    user.minibatch()
    user.minibatch()


@habit()
def step_in_backward(user: User) -> None:
    """a hook that steps inside backward, made after `OnDemand`"""
    for p in user.model.parameters():
        p.register_post_accumulate_grad_hook(_step_at_once)
    user.backward((1, 0))
    user.settle()
    user.publish()


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
    user.backward((1, 0))
    user.settle()
    user.publish()


@habit()
def counting_hooks(user: User) -> None:
    """hooks on parameters that count gradients and read none"""
    came = []
    for p in user.model.parameters():
        p.register_post_accumulate_grad_hook(lambda _: came.append(1))
    user.minibatch()
    user.minibatch()


@habit()
def gradient_hooks(user: User) -> None:
    """tensor hooks on parameters that change gradients"""
    for p in user.model.parameters():
        p.register_hook(lambda g: 2 * g)
    user.minibatch()


@habit()
def another_on_demand(user: User) -> None:
    """a second `OnDemand` of the same model"""
    if user.odc:
        from odc_engine import OnDemand

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


@habit(counts=(1, 1))
def closed_then_stock(user: User) -> None:
    """`close()`, stock training on"""
    user.minibatch()
    if user.odc:
        user.odc.close()
        user.odc = None
        to_sums(user.model)
    user.evaluate()
    user.backward()
    user.step()
    user.zero()
    user.evaluate()


def to_sums(model: nn.Module) -> None:
    """Stock FSDP2 told to add up as one process does."""
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
