"""Refuse parameters that were added or replaced after OnDemand was made: FSDP2 does not reduce their gradients."""

import torch

from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class ForeignParameters(Guard):
    def before_forward(self, unit: Unit) -> Refusals:
        yield from self.throughout(unit)
        if torch.is_grad_enabled() and not self.loop.minibatch.forwarded:
            yield from self._unknown()

    def before_settle(self) -> Refusals:
        yield from self._unknown()
        yield from super().before_settle()

    def _unknown(self) -> Refusals:
        pieces = [piece for unit in self.loop.units for piece in unit.pieces]
        known = {id(one) for piece in pieces for one in (piece.parameter, piece.managed.whole)}
        for name, parameter in self.loop.model.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                problem = f"parameter {name} came after OnDemand was made, and nobody adds up its gradients"
                yield InputError(problem, fix=self.loop.remedies.join)

    def throughout(self, unit: Unit) -> Refusals:
        """Object to a replaced parameter: FSDP2 would put its own back."""
        for piece in unit.pieces:
            if not piece.managed.in_place:
                problem = f"parameter {piece.name} was replaced by another since this OnDemand was made"
                yield InputError(problem, fix=self.loop.remedies.replace)
