"""Marks at which a model reports its progress to a listener, and at which waiting can replace computing.

Forward marks are plain calls. Backward marks are identity operations in the graph: one at a unit's output, whose
backward runs when that output's gradient has arrived, one at its input, whose backward runs when the unit is done.
Under FSDP2 both lie inside the unit's forward hooks, so "begin" comes after the wait for the gather and "end" before
the push. With nobody listening nothing is inserted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

EMBED, FORWARD, HEAD, BACKWARD, EMBED_BACKWARD = "embed", "forward", "head", "backward", "embed backward"
ROOT = 0  # unit; layers are 1..L

# Sleeping overshoots by about the kernel's timer slack (50 microseconds on Linux), so the last stretch only yields.
_SLACK = 1e-4


class Listener(Protocol):
    """Receives the begin and end of each phase of each unit, on the thread that runs it (on a GPU, autograd's thread
    runs backward)."""

    def begin(self, phase: str, unit: int) -> None: ...

    def end(self, phase: str, unit: int) -> None: ...


Emulate = Callable[[str, int], float]


def wait(seconds: float) -> None:
    """Sleep without using a core, to within microseconds on an idle machine."""
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        time.sleep(max(0.0, left - _SLACK))


@dataclass(slots=True, eq=False)
class Watch:
    """State shared by all units of one model, so that one assignment reaches them all."""

    listener: Listener | None = None
    emulate: Emulate | None = None  # seconds that each phase of each unit waits instead of computing
    pause: Callable[[float], None] = wait  # lets them pass where it computes
    zeros: bool = False  # waiting leaves zero gradients: some versions of FSDP2 push none else

    def begin(self, phase: str, unit: int) -> None:
        if self.listener is not None:
            self.listener.begin(phase, unit)

    def end(self, phase: str, unit: int) -> None:
        if self.listener is not None:
            self.listener.end(phase, unit)

    def begin_backward(self, x: Tensor, phase: str, unit: int) -> Tensor:
        """Return `x`; when its gradient arrives, the listener hears that the phase begins."""
        return x if self.listener is None else on_gradient(x, partial(self.listener.begin, phase, unit))

    def end_backward(self, x: Tensor, phase: str, unit: int) -> Tensor:
        """Return `x`; when its gradient arrives, the listener hears that the phase has ended."""
        return x if self.listener is None else on_gradient(x, partial(self.listener.end, phase, unit))

    def wait(self, phase: str, unit: int) -> None:
        """Wait for the seconds that the phase is emulated to take."""
        if self.emulate is not None:
            self.pause(self.emulate(phase, unit))

    def wait_backward(self, x: Tensor, phase: str, unit: int) -> Tensor:
        """Return `x`; its gradient is passed on after the phase's seconds."""
        return on_gradient(x, partial(self.wait, phase, unit))

    def zero_backward(self, x: Tensor, module: nn.Module) -> Tensor:
        """Return `x`; when its gradient arrives, the module's parameters get zero gradients if they need some."""
        return on_gradient(x, partial(_zero, module)) if self.zeros else x


def _zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def on_gradient(x: Tensor, call: Callable[[], None]) -> Tensor:
    """Return `x`, not copied; `call` runs when its gradient has arrived. Without a gradient, `x` itself."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    apply: Callable[..., Tensor] = _Mark.apply
    return apply(x, call)


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[[], None]) -> Tensor:
        ctx.call = call
        return x.detach()  # no copy; and no view either, which FSDP2 warns of as a unit's output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.call()
        return gradient, None
