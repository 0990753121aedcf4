"""A few losses of a trainer, taken before it trains, of which nothing remains: no draw, no buffer, no metric."""

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from odcsim.errors import InputError

SMALL = 10_000  # elements of a tensor, and entries of a list, that count as a note rather than as data
PLAIN = (bool, int, float, complex, str, bytes, type(None))
FSDP2, BUFFERS = "torch.distributed.fsdp._fully_shard", "_sync_buffers"  # who meets in a forward pass, stock
COLLECTIVES = ("c10d", "_c10d_functional")
LIBRARIES = ("torch", "accelerate", "transformers", "trl", "peft", "odc_engine")


@contextmanager
def untraced(trainer: Any, model: nn.Module) -> Iterator[None]:
    """Random states, buffers, and what the trainer has noted of itself are afterwards as they were."""
    with ExitStack() as kept:
        kept.enter_context(random_states())
        kept.callback(_buffers(model))
        kept.callback(notes(trainer))
        yield


@contextmanager
def random_states() -> Iterator[None]:
    """Afterwards as they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(numpys)  # noqa: NPY002


def _buffers(model: nn.Module) -> Callable[[], None]:
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def restore() -> None:
        with torch.no_grad():
            for buffer, value in before:
                if not torch.equal(buffer, value):  # by value: batch norm's own are written to without a count
                    buffer.copy_(value)

    return restore


def notes(trainer: Any) -> Callable[[], None]:
    """Remembers numbers, and lists and dictionaries of them: metrics, and what else a loss counts on its trainer.

    What is given back puts them back.
    """
    own = vars(trainer)
    before = {name: (value, copy.deepcopy(value)) for name, value in own.items() if _is_note(value)}

    def restore() -> None:
        for name in [name for name in own if name not in before and _is_note(own[name])]:
            del own[name]
        for name, (value, copied) in before.items():
            own[name] = _refilled(value, copied)

    return restore


def _is_note(value: Any) -> bool:
    if isinstance(value, PLAIN):
        return True
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.is_leaf and value.numel() <= SMALL
    if isinstance(value, dict):
        return len(value) <= SMALL and all(_is_note(one) for one in value.values())
    sized = isinstance(value, (list, set, tuple)) or type(value).__module__ == "collections"
    return sized and len(value) <= SMALL and all(_is_note(one) for one in value)


def _refilled(value: Any, copied: Any) -> Any:
    """The same object, since others may hold it, with what was in it."""
    if isinstance(value, Tensor):
        with torch.no_grad():
            return value.copy_(copied)
    if isinstance(value, dict):
        inner = {key: _refilled(value[key], one) if key in value else one for key, one in copied.items()}
        value.clear()
        value.update(inner)
        return value
    if isinstance(value, list):
        value[:] = copied
        return value
    return copied


def without_dropout(model: nn.Module) -> Callable[[], None]:
    """Every rate of dropping is 0 until what this gives is called."""
    owners = [*model.modules(), *([model.config] if hasattr(model, "config") else [])]
    rates = [(vars(owner), name) for owner in owners for name, value in vars(owner).items() if _is_rate(name, value)]
    before = [(values, name, values[name]) for values, name in rates]
    for values, name, _ in before:
        values[name] = 0.0

    def restore() -> None:
        for values, name, rate in before:
            values[name] = rate

    return restore


def _is_rate(name: str, value: Any) -> bool:
    return isinstance(value, float) and value > 0 and (name == "p" or "drop" in name)


class _NoCollectives(cast(Any, TorchDispatchMode)):  # type: ignore[misc]
    def __init__(self, equal: bool) -> None:
        super().__init__()
        self._equal = equal

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES and not (self._equal and _of_libraries(sys._getframe(1))):
            raise InputError(
                f"a collective ({func.__name__}) inside a microbatch, which each rank runs by itself",
                fix="call it once per minibatch: in log(), or in a callback's on_step_end",
            )
        return func(*args, **(kwargs or {}))


def _of_libraries(frame: FrameType | None) -> bool:
    """Whether FSDP2 gathers weights, DDP sends buffers around, or a trainer calls what does: as often on each rank."""
    while frame is not None and _module(frame).startswith("torch."):
        if _module(frame).startswith(FSDP2) or frame.f_code.co_name == BUFFERS:
            return True
        frame = frame.f_back
    return frame is not None and _library(frame) in LIBRARIES


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _library(frame: FrameType) -> str:
    return _module(frame).split(".")[0]


@contextmanager
def alone(*, equal: bool = False) -> Iterator[None]:
    """No collective passes, and nobody but libraries asks how many ranks there are. `equal`: those of libraries pass,
    since ranks have equal numbers of microbatches."""
    asked, local = dist.get_world_size, DTensor.to_local

    def world_size(*args: Any, **how: Any) -> int:
        frame = sys._getframe(1)
        if _library(frame) in LIBRARIES:
            return asked(*args, **how)
        raise InputError(
            "torch.distributed.get_world_size() in a loss, which is weighed by what it is a mean over",
            where=f"{frame.f_code.co_qualname}, line {frame.f_lineno}",
            fix="leave the number of ranks out, or ask accelerator.num_processes, which is 1 here",
        )

    def to_local(own: DTensor, **how: Any) -> Tensor:
        frame = sys._getframe(1)
        if equal and _library(frame) not in LIBRARIES:
            raise InputError(
                "a rank's own part of a weight (to_local) in a loss, whose gradient nobody averages",
                where=f"{frame.f_code.co_qualname}, line {frame.f_lineno}",
                fix="use it in a forward pass",
            )
        return local(own, **how)

    dist.get_world_size = world_size
    DTensor.to_local = to_local  # type: ignore[method-assign, assignment]
    try:
        with cast(Any, _NoCollectives)(equal):
            yield
    finally:
        dist.get_world_size = asked
        DTensor.to_local = local  # type: ignore[method-assign]
