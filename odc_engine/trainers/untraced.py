"""A few losses of a trainer, taken before it trains, of which nothing remains: no draw, no buffer, no metric."""

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from odcsim.errors import InputError

SMALL = 10_000  # elements of a tensor, and entries of a list, that count as a note rather than as data
PLAIN = (bool, int, float, complex, str, bytes, type(None))
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
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise InputError(
                f"a collective ({func.__name__}) inside a microbatch, of which ranks have unlike numbers",
                fix="call it once per minibatch: in log(), or in a callback's on_step_end",
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def alone() -> Iterator[None]:
    """No collective passes, and nobody but libraries asks how many ranks there are."""
    asked = dist.get_world_size

    def world_size(*args: Any, **how: Any) -> int:
        frame = sys._getframe(1)
        if str(frame.f_globals.get("__name__", "")).split(".")[0] in LIBRARIES:
            return asked(*args, **how)
        raise InputError(
            "torch.distributed.get_world_size() in a loss, which is weighed by what it is a mean over",
            where=f"{frame.f_code.co_qualname}, line {frame.f_lineno}",
            fix="leave the number of ranks out, or ask accelerator.num_processes, which is 1 here",
        )

    dist.get_world_size = world_size
    try:
        with cast(Any, _NoCollectives)():
            yield
    finally:
        dist.get_world_size = asked
