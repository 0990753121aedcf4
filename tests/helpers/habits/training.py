"""Modes of training, and settings of FSDP2."""

from functools import partial

import nets
import torch
from nets import Dropping, Net
from torch import nn
from torch.distributed import _composable as composable
from torch.distributed.fsdp import fully_shard
from users import User, by_layers

from habits import habit, in_words


def eval_mode(user: User) -> None:
    user.model.eval()


def train_mode(user: User) -> None:
    user.model.train()


def evaluate_with_gradients(user: User) -> None:
    user.evaluate(torch.enable_grad)


in_words(__name__, counts=(1, 1))("""
inference_mode: 2 x infer minibatch | evaluation under `inference_mode`, before and after steps
""")
in_words(__name__, eval_mode, train_mode, evaluate_with_gradients)("""
eval_mode: 2 x eval_mode evaluate train_mode minibatch | `eval()` and `train()` around evaluations
evaluation_with_gradients: 2 x evaluate_with_gradients minibatch | an evaluation that forgets `no_grad`
""")


@habit()
def inference_mode_first(user: User) -> None:
    """`inference_mode` before anything else, with unequal numbers of microbatches"""
    user.evaluate(torch.inference_mode, 3)
    user.minibatch()


def _compile(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer)
        layer.compile(backend="aot_eager", fullgraph=True)
    fully_shard(model)


def _compile_whole(model: nn.Module) -> None:
    by_layers(model)
    model.compile(backend="aot_eager")


in_words(__name__, wrap=_compile)("""
compiled_layers: minibatch evaluate minibatch | layers compiled with `fullgraph=True`
""")
in_words(__name__, wrap=_compile_whole)("""
compiled_model: minibatch evaluate minibatch | the whole model compiled
""")


@habit()
def compiled_step(user: User) -> None:
    """attached: a compiled function that clips, steps and calls `zero_grad()`, under `torch.compile`"""
    user.attach()

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
        user.settle()
        user.step()
        user.zero()
        user.publish()

    compiled = torch.compile(minibatch, backend="eager") if user.odc else minibatch
    for _ in range(2):
        compiled()
        user.evaluate()


def one_backward(user: User) -> None:
    """Of all microbatches."""
    user.number += 1
    sum(user.loss(rank, m) for rank in user.ranks for m in range(user.habit.counts[rank])).backward()


def _nested(model: nn.Module) -> None:
    for layer in model.layers:
        fully_shard(layer.up)
    by_layers(model)


def _checkpointed(model: nn.Module) -> None:
    for layer in model.layers:
        composable.checkpoint(layer)
    by_layers(model)


INSIDE, AROUND, REENTRANT = (
    partial(Net, recompute="plain"),
    partial(Net, around="plain"),
    partial(Net, around="reentrant"),
)
in_words(__name__, model=INSIDE)("""
recomputed: 2 x minibatch | activation checkpointing inside layers
""")
in_words(__name__, model=AROUND)("""
recomputed_around: 2 x minibatch | activation checkpointing around layers
""")
in_words(__name__, model=REENTRANT)("""
recomputed_reentrant: 2 x minibatch | reentrant activation checkpointing
""")
in_words(__name__, one_backward, counts=(2, 3), model=AROUND)("""
recomputed_together: 2 x one_backward finish
    activation checkpointing around layers, several forward passes before one backward pass
""")
in_words(__name__, one_backward, counts=(3, 2), model=INSIDE, wrap=_nested)("""
recomputed_nested: attach; 2 x one_backward clip step zero
    the same inside layers, of which parts are units of their own, and with an optimizer attached
""")
in_words(__name__, one_backward, wrap=_checkpointed)("""
recomputed_by_hooks: 2 x one_backward finish | the same by hooks of `torch.distributed._composable.checkpoint`
""")
in_words(__name__, one_backward, counts=(2, 2), model=AROUND)("""
recomputed_together_then_apart: one_backward finish minibatch one_backward finish
    the same, and microbatches with a backward pass each in the next minibatch
""")
in_words(__name__, one_backward, counts=(2, 2), model=REENTRANT)("""
recomputed_reentrant_together: one_backward finish
    reentrant activation checkpointing, two forward passes before one backward pass: wrong under stock FSDP2
""")
in_words(__name__, model=Dropping)("""
dropped_layers: 2 x minibatch | layers that are left out by some microbatches
""")


@habit(optimizer=partial(torch.optim.LBFGS, max_iter=2))
def closure(user: User) -> None:
    """an optimizer that calls a closure"""

    def again():
        user.do("zero backward:1,1")
        return torch.zeros(())

    user.optimizer.step(again)
    user.publish()


@habit()
def fused(user: User) -> None:
    """a fused optimizer, `publish()` forgotten"""
    user.optimizer = torch.optim.AdamW(user.model.parameters(), lr=0.01, fused=True)
    user.do("backward settle step evaluate")


@habit()
def scheduler(user: User) -> None:
    """a schedule of learning rates"""
    schedule = torch.optim.lr_scheduler.LambdaLR(user.optimizer, lambda n: 1 / (1 + n))
    for _ in range(3):
        user.do("backward settle step")
        schedule.step()
        user.publish()


@habit()
def submodule_alone(user: User) -> None:
    """a forward pass of a part of the model, without the rest"""
    user.minibatch()
    with torch.no_grad():
        user.seen.append(user.model.layers[1](torch.ones(2, nets.WIDTH, dtype=user.dtype)).sum().item())
    user.minibatch()
