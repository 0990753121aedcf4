"""Handle parameters that are frozen or unfrozen (requires_grad) during training."""

from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class FrozenParameters(Guard):
    """Carry requires_grad over between a parameter's whole and sharded tensors.

    After an evaluation or a step, the model shows one of the two, and the user freezes that one. FSDP2 copies the flag
    from the shard only; here the latest change counts. A parameter that was frozen when the arena was laid out has no
    memory for gradients there.
    """

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._known = [[piece.parameter.requires_grad for piece in unit.pieces] for unit in loop.units]

    def before_forward(self, unit: Unit) -> Refusals:
        self._carry_over(unit)
        if self.loop.minibatch.first_use(unit):
            yield from self.throughout(unit)

    def _carry_over(self, unit: Unit) -> None:
        for i, (piece, known) in enumerate(zip(unit.pieces, self._known[unit.index], strict=True)):
            sharded, whole = piece.parameter, piece.managed.whole
            if sharded.requires_grad is known and whole.requires_grad is known:
                continue
            self._known[unit.index][i] = now = not known
            sharded.requires_grad_(now)
            whole.requires_grad_(now)

    def throughout(self, unit: Unit) -> Refusals:
        for piece in unit.frozen:
            if piece.parameter.requires_grad:
                problem = f"parameter {piece.name} was unfrozen since this OnDemand was made"
                yield InputError(problem, fix=self.loop.remedies.unfreeze)
