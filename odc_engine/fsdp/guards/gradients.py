"""Refuse gradients in `.grad` before settle(), other than those of pushes."""

from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.units import Piece, Unit
from odcsim.errors import InputError


class KeptGradients(Guard):
    """Object to gradients that were accumulated without a push (no_sync), and are in no sum."""

    def throughout(self, unit: Unit) -> Refusals:
        for piece in unit.trainable:
            if piece.managed.kept_back:
                yield self._kept_back(unit, piece)

    def _kept_back(self, unit: Unit, piece: Piece) -> InputError:
        problem = f"the gradient of {piece.name} was accumulated without synchronization and never reduced"
        if not unit.group.reduces:
            fix = "set_requires_gradient_sync(True) before the last backward pass of a minibatch"
            return InputError(problem, fix=fix)
        problem = f"a gradient of {piece.name} came after the gradients of its unit were pushed"
        return InputError(problem, fix="call backward(), and leave torch.autocast, after each microbatch")


class TouchedGradients(Guard):
    """Object if gradients of the last minibatch are still there, or if pending gradients were replaced."""

    def before_settle(self) -> Refusals:
        for name in self.loop.minibatch.pending.left:
            problem = f"the gradient of {name} is still there when the next minibatch has one"
            yield InputError(problem, fix=self.loop.remedies.left)
        yield from super().before_settle()

    def throughout(self, unit: Unit) -> Refusals:
        pending = self.loop.minibatch.pending.of(unit)
        for piece in unit.trainable:
            gradient = piece.parameter.grad
            if gradient is None if not pending else id(gradient) in pending:
                continue
            done = "dropped" if gradient is None else "set"
            problem = f"the gradient of {piece.name} was {done} before settle()"
            yield InputError(problem, fix=self.loop.remedies.leave)
