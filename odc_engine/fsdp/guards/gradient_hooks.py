"""Refuse hooks on gradients of sharded parameters. FSDP2 never calls them; ours detect gradients that bypass it."""

from typing import Any, cast

from torch import Tensor

from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.units import Unit, hook_that_steps, steps_in_backward
from odcsim.errors import InputError


class _Bypass:
    """Hook that autograd calls if a gradient reaches a shard directly: it is of this rank's data only, and not
    reduced."""

    def __init__(self, loop: Loop, name: str) -> None:
        self._loop, self._name = loop, name

    def __call__(self, _: Tensor) -> None:
        problem = f"the loss uses {self._name} outside FSDP's forward, so its gradient would not be reduced"
        raise InputError(problem, fix=self._loop.remedies.add)


class GradientHooks(Guard):
    def begin(self) -> None:
        for piece in (piece for unit in self.loop.units for piece in unit.trainable):
            if piece.parameter.requires_grad:
                hook = cast(Any, piece.parameter).register_hook(_Bypass(self.loop, piece.name))
                self.loop.minibatch.watches.callback(hook.remove)

    def before_forward(self, unit: Unit) -> Refusals:
        return self.throughout(unit) if self.loop.minibatch.first_use(unit) else iter(())

    def throughout(self, unit: Unit) -> Refusals:
        for piece in unit.trainable:
            hooks = getattr(piece.parameter, "_backward_hooks", None) or {}
            if not all(isinstance(hook, _Bypass) for hook in hooks.values()):
                problem = f"parameter {piece.name} was given a hook on its gradient, which FSDP2 never calls"
                yield InputError(problem, fix=self.loop.remedies.change)
            if steps_in_backward(piece.parameter):
                yield hook_that_steps(piece.name)
