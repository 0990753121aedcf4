"""What this device has done since weights were published: what settle() has to find, or says why it does not."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn

from odc_engine.fsdp.groups import after_backward, in_backward, start_anew
from odc_engine.fsdp.guards.foreign_parameters import replaced, strangers
from odc_engine.fsdp.guards.frozen_parameters import Frozen, unfrozen
from odc_engine.fsdp.guards.settings import Settings
from odc_engine.fsdp.pending_gradients import Unsettled
from odc_engine.fsdp.remedies import Ways
from odc_engine.fsdp.units import Piece, Unit, hook_that_steps, steps_in_backward
from odcsim.errors import InputError


class Minibatch:
    """Gradients come by pushes alone, from backward passes that were not interrupted, of forward passes over weights
    that are published now; and nobody touches `.grad` before settle()."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], ways: Ways) -> None:
        self._model, self._units, self._frozen, self._ways = model, units, Frozen(units), ways
        self._forwarded: set[int] = set()
        self._placed: dict[int, list[Unsettled]] = {}
        self._pushes = 0
        self._before: int | None = None  # pushes when the backward pass began that has not ended
        self._shards, self._told = ExitStack(), Settings(units)
        self._watched: set[int] = set()  # parameters of which a hook is ours
        self.deferred = False  # gradients of earlier passes have been kept back
        self.look: Callable[[], None] | None = None  # what settles where somebody reads a gradient

    @property
    def pushed(self) -> bool:
        return self._pushes > 0

    def use(self, unit: Unit) -> None:
        """FSDP2 wants a unit whole."""
        if unit.group.phase.endswith("BACKWARD"):
            self.deferred |= not unit.group.reduces
            if in_backward():
                if self._before is None:
                    self._before = self._pushes
                    after_backward(self._ended)
                _refuse(_twice_differentiable(unit))
            return
        _refuse(next(replaced(unit, self._ways.now), None))
        self._frozen.carry_over(unit)
        if torch.is_grad_enabled():
            if not self._forwarded:
                _refuse(next(strangers(self._model, self._units, self._ways.now), None))
            if unit.index not in self._forwarded:
                self._forwarded.add(unit.index)
                _refuse(next(self._altered(unit), None))
            _refuse(self._interrupted())

    def _ended(self) -> None:
        self._before = None

    def _left_a_trace(self) -> bool:
        """Whether what was interrupted cannot be told apart from what was not."""
        return self._before is not None and (self.deferred or self._before != self._pushes) and not in_backward()

    def _interrupted(self) -> InputError | None:
        if not self._left_a_trace():
            return None
        problem = "a backward pass was interrupted when a part of its gradients was on the way"
        return InputError(problem, fix=self._ways.now.drop)

    def begin(self) -> None:
        """A forward pass of the whole model begins."""
        _refuse(self._interrupted())
        if self._before is not None and not in_backward():
            self._mend()

    def _mend(self) -> None:
        """After a pass that was interrupted before it left a trace: FSDP2 would go on in the middle of it."""
        if self._before is not None or any(unit.group.phase != "IDLE" for unit in self._units):
            start_anew(self._model, [unit.group for unit in self._units])
        self._before = None

    def start_anew(self) -> None:
        """After an exception in a forward or backward pass."""
        start_anew(self._model, [unit.group for unit in self._units])
        self._before = None

    def push(self, unit: Unit, *, reached: bool) -> None:
        """Gradients of a unit go to their owners."""
        if reached and unit.index not in self._forwarded:
            problem = f"backward() of a forward pass of {unit.name} that ran in an earlier minibatch"
            raise InputError(problem, fix="finish backward before the optimizer steps")
        if self.look is not None:
            _refuse(next(self._left(unit), None))
            if not self._pushes:
                self.lay()
        self._pushes += 1
        self._lay(unit)

    def lay(self) -> None:
        """Say of every gradient that it is on its way, also of those that this device has no part in."""
        for unit in self._units:
            self._lay(unit)
            grads = [piece.parameter.grad for piece in unit.trainable]
            self._placed[unit.index] = [gradient for gradient in grads if isinstance(gradient, Unsettled)]

    def take_up(self) -> bool:
        """What was laid, of a minibatch that has not begun. Whether there was anything."""
        laid = [gradient for gradients in self._placed.values() for gradient in gradients]
        self._forget_placed()
        for unit in self._units:
            drop_gradients(unit, keep=True)
        return bool(laid)

    def _lay(self, unit: Unit) -> None:
        made = []
        for piece in unit.trainable:
            if piece.parameter.grad is None:
                piece.parameter.grad = gradient = Unsettled.of(piece.managed, self._ways, self.look)
                made.append(gradient)
        self._placed.setdefault(unit.index, made)

    def _left(self, unit: Unit) -> Iterator[InputError]:
        for piece in unit.trainable:
            if piece.parameter.grad is not None and not isinstance(piece.parameter.grad, Unsettled):
                problem = f"the gradient of {piece.name} is still there when the next minibatch has one"
                yield InputError(problem, fix=self._ways.now.left)

    def arrive(self) -> None:
        """Gradients are there."""
        for gradients in self._placed.values():
            for gradient in gradients:
                if gradient.look is not None:
                    gradient.arrive()

    def problem(self) -> InputError | None:
        """Why sums would not be what a user takes them for."""
        if interrupted := self._interrupted():
            return interrupted
        if self._before is not None:
            self._mend()  # what it has left whole is not kept back
        problem = next(self._problems(), None)
        if problem is None:
            self._mend()
        return problem

    def _problems(self) -> Iterator[InputError]:
        yield from strangers(self._model, self._units, self._ways.now)
        for unit in self._units:
            yield from replaced(unit, self._ways.now)
            yield from self._altered(unit)
            for piece in unit.trainable:
                if piece.managed.kept_back:
                    yield _kept_back(unit, piece)
            yield from self._touched(unit)

    def _altered(self, unit: Unit) -> Iterator[InputError]:
        """What was laid out otherwise when this OnDemand was made."""
        yield from unfrozen(unit, self._ways.now)
        yield from self._told.otherwise(unit)
        for piece in unit.trainable:
            hooks = getattr(piece.parameter, "_backward_hooks", None) or ()
            if len(hooks) > (id(piece.parameter) in self._watched):
                problem = f"parameter {piece.name} was given a hook on its gradient, which FSDP2 never calls"
                yield InputError(problem, fix=self._ways.now.change)
            if steps_in_backward(piece.parameter):
                yield hook_that_steps(piece.name)

    def _touched(self, unit: Unit) -> Iterator[InputError]:
        placed = {id(gradient) for gradient in self._placed.get(unit.index, [])}
        for piece in unit.trainable:
            gradient = piece.parameter.grad
            if gradient is None if not placed else id(gradient) in placed:
                continue
            done = "dropped" if gradient is None else "set"
            yield InputError(f"the gradient of {piece.name} was {done} before settle()", fix=self._ways.now.leave)

    def clear(self) -> None:
        """The next one begins; what is left of this one goes."""
        self._mend()
        for unit in self._units:
            for piece in unit.trainable:
                piece.managed.forget()
        self._forget_placed()
        self._forwarded.clear()
        self._pushes, self._before, self.deferred = 0, None, False
        self._watch_shards()

    def _forget_placed(self) -> None:
        for gradients in self._placed.values():
            for gradient in gradients:
                gradient.look = None
        self._placed.clear()

    def _watch_shards(self) -> None:
        """A gradient that autograd brings to a shard itself is of this device's data alone, and summed by nobody."""
        self._shards.close()
        self._watched.clear()
        for unit in self._units:
            for piece in unit.trainable:
                if piece.parameter.requires_grad:
                    hook = cast(Any, piece.parameter).register_hook(functools.partial(self._bypass, piece))
                    self._shards.callback(hook.remove)
                    self._watched.add(id(piece.parameter))

    def _bypass(self, piece: Piece, _: Tensor) -> None:
        problem = f"the loss uses {piece.name} outside FSDP's forward, so its gradient would not be reduced"
        raise InputError(problem, fix=self._ways.now.add)

    def close(self) -> None:
        """Gradients that never arrived are not to be taken for others."""
        self._shards.close()
        for unit in self._units:
            for gradient in self._placed.get(unit.index, []):
                gradient.closed = True
                if not self._pushes and gradient.managed.sharded.grad is gradient:
                    gradient.managed.sharded.grad = None


def _kept_back(unit: Unit, piece: Piece) -> InputError:
    problem = f"the gradient of {piece.name} was kept back and never pushed"
    if not unit.group.reduces:
        return InputError(problem, fix="set_requires_gradient_sync(True) before the last backward pass of a minibatch")
    problem = f"a gradient of {piece.name} came when those of its unit had been pushed"
    return InputError(problem, fix="call backward(), and leave torch.autocast, after each microbatch")


def _twice_differentiable(unit: Unit) -> InputError | None:
    if not (torch.is_grad_enabled() and unit.group.reshards_after_backward):
        return None
    problem = f"create_graph=True, which wants weights of {unit.name} that are freed in backward"
    return InputError(problem, fix="fully_shard(reshard_after_forward=False) and set_reshard_after_backward(False)")


def _refuse(error: InputError | None) -> None:
    if error is not None:
        raise error


def drop_gradients(unit: Unit, keep: bool) -> None:
    """FSDP2 would add to them in backward. `keep`: only those that never came."""
    for piece in unit.pieces:
        if not keep or isinstance(piece.parameter.grad, Unsettled):
            piece.parameter.grad = None
