"""Parameters that came, or took others' places, after units were laid out: FSDP2 knows nothing of them, and nobody adds
up their gradients."""

from collections.abc import Iterator, Sequence

from torch import nn

from odc_engine.fsdp.remedies import WaysOut
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


def strangers(model: nn.Module, units: Sequence[Unit], words: WaysOut) -> Iterator[InputError]:
    known = {id(one) for unit in units for piece in unit.pieces for one in (piece.parameter, piece.managed.whole)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in known:
            problem = f"parameter {name} came after OnDemand was made, and nobody adds up its gradients"
            yield InputError(problem, fix=words.join)


def replaced(unit: Unit, words: WaysOut) -> Iterator[InputError]:
    """FSDP2 would put its own back."""
    for piece in unit.pieces:
        if not piece.managed.in_place:
            problem = f"parameter {piece.name} was replaced by another since this OnDemand was made"
            yield InputError(problem, fix=words.replace)
