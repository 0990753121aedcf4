"""Modes of training, and settings of FSDP2."""

from functools import partial

import nets
import torch
from nets import Dropping, Net
from torch import nn
from torch.distributed import _composable as composable
from torch.distributed.fsdp import fully_shard
from users import User, by_layers

from habits import habit
from habits.attached import attached


@habit(counts=(1, 1))
def inference_mode(user: User) -> None:
    """evaluation under `inference_mode`, before and after steps"""
    user.evaluate(torch.inference_mode)
    user.minibatch()
    user.evaluate(torch.inference_mode)
    user.minibatch()


@habit()
def inference_mode_first(user: User) -> None:
    """`inference_mode` before anything else, with unequal numbers of microbatches"""
    user.evaluate(torch.inference_mode, 3)
    user.minibatch()


@habit()
def eval_mode(user: User) -> None:
    """`eval()` and `train()` around evaluations"""
    for _ in range(2):
        user.model.eval()
        user.evaluate()
        user.model.train()
        user.minibatch()


@habit()
def evaluation_with_gradients(user: User) -> None:
    """an evaluation that forgets `no_grad`"""
    user.evaluate(torch.enable_grad)
    user.minibatch()
    user.evaluate(torch.enable_grad)
    user.minibatch()


def _compile(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer)
        layer.compile(backend="aot_eager", fullgraph=True)
    fully_shard(model)


@habit(wrap=_compile)
def compiled_layers(user: User) -> None:
    """layers compiled with `fullgraph=True`"""
    user.minibatch()
    user.evaluate()
    user.minibatch()


def _compile_whole(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.compile(backend="aot_eager")


@habit(wrap=_compile_whole)
def compiled_model(user: User) -> None:
    """the whole model compiled"""
    user.minibatch()
    user.evaluate()
    user.minibatch()


@habit()
def compiled_step(user: User) -> None:
    """attached: a compiled function that clips, steps and calls `zero_grad()`, under `torch.compile`"""
    attached(user)

    def finish() -> None:
        nn.utils.clip_grad_norm_(user.model.parameters(), 0.05)
        user.optimizer.step()
        user.optimizer.zero_grad()

    compiled = torch.compile(finish, backend="eager") if user.odc else finish
    for _ in range(2):
        user.backward()
        compiled()
        user.evaluate()


@habit(counts=(1, 1), since="2.13")
def compiled_minibatch(user: User) -> None:
    """a whole minibatch as one function under `torch.compile`: forward, backward, settle, step, publish"""
    tokens, turn = nets.tokens_of(0, 0, 0), 0

    def minibatch() -> None:
        for _ in user.ranks:
            user.model(tokens, turn).sum().backward()
        user.finish()

    compiled = torch.compile(minibatch, backend="eager") if user.odc else minibatch
    for _ in range(2):
        compiled()
        user.evaluate()


@habit(model=partial(Net, recompute="plain"))
def recomputed(user: User) -> None:
    """activation checkpointing inside layers"""
    user.minibatch()
    user.minibatch()


@habit(model=partial(Net, around="plain"))
def recomputed_around(user: User) -> None:
    """activation checkpointing around layers"""
    user.minibatch()
    user.minibatch()


@habit(model=partial(Net, around="reentrant"))
def recomputed_reentrant(user: User) -> None:
    """reentrant activation checkpointing"""
    user.minibatch()
    user.minibatch()


def _one_backward(user: User) -> None:
    """Of all microbatches."""
    user.number += 1
    sum(user.loss(rank, m) for rank in user.ranks for m in range(user.habit.counts[rank])).backward()


def _nested(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer.up)
        fully_shard(layer)
    fully_shard(model)


def _checkpointed(model: nn.Module) -> None:
    for layer in model.layers:
        composable.checkpoint(layer)
    by_layers(model)


@habit(counts=(2, 3), model=partial(Net, around="plain"))
def recomputed_together(user: User) -> None:
    """activation checkpointing around layers, several forward passes before one backward pass"""
    for _ in range(2):
        _one_backward(user)
        user.finish()


@habit(counts=(3, 2), model=partial(Net, recompute="plain"), wrap=_nested)
def recomputed_nested(user: User) -> None:
    """the same inside layers, of which parts are units of their own, and with an optimizer attached"""
    attached(user)
    for _ in range(2):
        _one_backward(user)
        user.clip()
        user.step()
        user.zero()


@habit(wrap=_checkpointed)
def recomputed_by_hooks(user: User) -> None:
    """the same by hooks of `torch.distributed._composable.checkpoint`"""
    for _ in range(2):
        _one_backward(user)
        user.finish()


@habit(counts=(2, 2), model=partial(Net, around="plain"))
def recomputed_together_then_apart(user: User) -> None:
    """the same, and microbatches with a backward pass each in the next minibatch"""
    for step in (_one_backward, User.backward, _one_backward):
        step(user)
        user.finish()


@habit(counts=(2, 2), model=partial(Net, around="reentrant"))
def recomputed_reentrant_together(user: User) -> None:
    """reentrant activation checkpointing, two forward passes before one backward pass: wrong under stock FSDP2"""
    _one_backward(user)
    user.finish()


@habit(model=Dropping)
def dropped_layers(user: User) -> None:
    """layers that are left out by some microbatches"""
    user.minibatch()
    user.minibatch()


@habit(optimizer=partial(torch.optim.LBFGS, max_iter=2))
def closure(user: User) -> None:
    """an optimizer that calls a closure"""

    def again():
        user.zero()
        user.backward((1, 1))
        return torch.zeros(())

    user.optimizer.step(again)
    user.publish()


@habit()
def fused(user: User) -> None:
    """a fused optimizer, `publish()` forgotten"""
    user.optimizer = torch.optim.AdamW(user.model.parameters(), lr=0.01, fused=True)
    user.backward()
    user.settle()
    user.step()
    user.evaluate()


@habit()
def scheduler(user: User) -> None:
    """a schedule of learning rates"""
    schedule = torch.optim.lr_scheduler.LambdaLR(user.optimizer, lambda n: 1 / (1 + n))
    for _ in range(3):
        user.backward()
        user.settle()
        user.step()
        schedule.step()
        user.publish()


@habit()
def submodule_alone(user: User) -> None:
    """a forward pass of a part of the model, without the rest"""
    user.minibatch()
    with torch.no_grad():
        user.seen.append(user.model.layers[1](torch.ones(2, nets.WIDTH, dtype=user.dtype)).sum().item())
    user.minibatch()
