"""Parameters that are frozen and unfrozen while a loop runs."""

from collections.abc import Iterator, Sequence

from odc_engine.fsdp.remedies import WaysOut
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class Frozen:
    """A parameter shows itself whole or sharded, as an evaluation or a step has left it, and is frozen as it shows
    itself. FSDP2 carries that over from the shard alone, here the latest is what counts.

    What was frozen when the arena was laid out has no room there."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._known = [[piece.parameter.requires_grad for piece in unit.pieces] for unit in units]

    def carry_over(self, unit: Unit) -> None:
        """Before a forward pass."""
        for i, (piece, known) in enumerate(zip(unit.pieces, self._known[unit.index], strict=True)):
            sharded, whole = piece.parameter, piece.managed.whole
            if sharded.requires_grad is known and whole.requires_grad is known:
                continue
            self._known[unit.index][i] = now = not known
            sharded.requires_grad_(now)
            whole.requires_grad_(now)


def unfrozen(unit: Unit, words: WaysOut) -> Iterator[InputError]:
    for piece in unit.frozen:
        if piece.parameter.requires_grad:
            yield InputError(
                f"parameter {piece.name} was unfrozen since this OnDemand was made",
                fix=words.unfreeze,
            )
