"""A microbatch of a trainer as if there were one process and one microbatch: what comes together is weighed outside."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from odcsim.errors import InputError

GATHERS = ("gather", "gather_for_metrics", "reduce", "pad_across_processes")
KNOWN = ("trl", "transformers", "accelerate", "peft", "odc_engine")  # whose gathers come to metrics alone
ONCE = "keep this rank's value, and gather it once per minibatch: in log(), or in a callback's on_step_end"


@contextmanager
def own_alone(accelerator: Any) -> Iterator[None]:
    """Every gather of the accelerator gives back this device's part to metrics, and is refused in a loss."""
    for name in GATHERS:
        setattr(accelerator, name, _Own(name))
    try:
        yield
    finally:
        for name in GATHERS:
            delattr(accelerator, name)


class _Own:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, values: Any, *_: Any, **__: Any) -> Any:
        frame = sys._getframe(1)
        if str(frame.f_globals.get("__name__", "")).split(".")[0] not in KNOWN:
            raise InputError(
                f"accelerator.{self._name} inside a microbatch, which each rank runs by itself",
                where=f"{frame.f_code.co_qualname}, line {frame.f_lineno}",
                fix=ONCE,
            )
        return values if self._name == "pad_across_processes" else _own(values)


def _own(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values if values.dim() else values[None]
    if isinstance(values, dict):
        return type(values)({key: _own(value) for key, value in values.items()})
    if isinstance(values, (list, tuple)):
        return type(values)(_own(value) for value in values)
    return values


@contextmanager
def one_process(trainer: Any) -> Iterator[None]:
    """The trainer's own loss as one process has it: times no number of processes."""
    states, own = import_module("accelerate.state"), trainer.args
    with ExitStack() as kept:
        kept.enter_context(own_alone(trainer.accelerator))
        for state in (states.AcceleratorState, states.PartialState):
            kept.enter_context(instead(state._shared_state, "num_processes", 1))
        kept.enter_context(instead(vars(own), "average_tokens_across_devices", False))
        kept.enter_context(_own_name(trainer.model))
        yield


@contextmanager
def _own_name(model: Any) -> Iterator[None]:
    """By which a Trainer tells whether to shift labels that it smooths. FSDP2 puts its own in front."""
    if not isinstance(model, FSDPModule):
        yield
        return
    name = next(kind.__name__ for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
    vars(model)["_get_name"] = lambda: name
    try:
        yield
    finally:
        del vars(model)["_get_name"]


@contextmanager
def instead(values: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Another value while this lasts, of what is there."""
    if name not in values:
        yield
        return
    before, values[name] = values[name], value
    try:
        yield
    finally:
        values[name] = before


class Backward:
    """What a trainer calls on its losses. Each counts `scale` times; `keep`: for who goes back from `total` later.

    Of a loss that reaches nothing that is trained there is no gradient to take: of texts alone, where adapters are in
    a vision tower."""

    def __init__(self, accelerator: Any, scale: float, *, keep: bool = False) -> None:
        self._usual, self._scale, self._keep = accelerator.backward, scale, keep
        self.total: Tensor | None = None
        self.reached = False  # whether there was a gradient to take

    def __call__(self, loss: Tensor, **how: Any) -> None:
        weighed = loss * self._scale
        self.reached |= weighed.requires_grad
        if not self._keep:
            if weighed.requires_grad:
                self._usual(weighed, **how)
            weighed = weighed.detach()
        self.total = weighed if self.total is None else self.total + weighed


class HeardLosses:
    """Takes losses, and goes back from none."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self, loss: Tensor, **_: Any) -> None:
        self.losses.append(float(loss.detach()))


@contextmanager
def backward_as(accelerator: Any, backward: Callable[..., Any]) -> Iterator[None]:
    accelerator.backward = backward
    try:
        yield
    finally:
        del accelerator.backward
