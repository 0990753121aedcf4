"""Refuse weights that differ from those that were published: peers read the arena, FSDP2 reads the parameters.

Version counters detect most changes at no cost. Changes through `.data`, by a collective into a shard or by a fused
optimizer do not count there, so that the shards that FSDP2 passes are also compared bit by bit.
"""

import torch
from torch import Tensor

from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.units import Unit, refuse_cast
from odc_engine.fsdp.versions import bits, packed
from odcsim.errors import InputError


class PublishedVersions(Guard):
    """Object to a forward that changes whole weights: the change exists on this rank only, and is lost with the
    whole copy."""

    def before_forward(self, unit: Unit) -> Refusals:
        for piece in unit.pieces:
            refuse_cast(piece.managed)
        if self.loop.minibatch.versions.changed(unit):
            yield _changed(self.loop, unit)
        yield from self.throughout(unit)

    before_backward = before_forward

    def throughout(self, unit: Unit) -> Refusals:
        for name in self.loop.minibatch.versions.changed_whole(unit):
            problem = f"a forward pass changes parameter {name}, and each device would change only a temporary copy"
            yield InputError(problem, fix="change it between settle() and publish(), or make it a buffer")


class PublishedBits(Guard):
    """Compare bits at each gather in forward, not again in backward. On a GPU the result would have to be waited
    for, so all flags are read together before gradients are used."""

    def before_forward(self, unit: Unit) -> Refusals:
        """Check a unit that FSDP2 kept whole, since it passes no shard of it."""
        if unit.group.is_whole and unit.group.phase == "FORWARD":
            yield from self.before_gather(unit, None)

    def before_gather(self, unit: Unit, mine: Tensor | None) -> Refusals:
        if unit.phase == "backward":
            return
        published = self.loop.published(unit)
        own, theirs = bits(packed(unit, published) if mine is None else mine, published)
        if own.is_cuda:
            self.loop.minibatch.suspect(unit, (own != theirs).any())
        elif not torch.equal(own, theirs):
            yield _changed(self.loop, unit)

    def before_settle(self) -> Refusals:
        unlike = self.loop.minibatch.unlike
        if unlike and torch.stack([flag for flag, _ in unlike]).any():
            yield _changed(self.loop, next(unit for flag, unit in unlike if flag))


def _changed(loop: Loop, unit: Unit) -> InputError:
    return InputError(f"weights of {unit.name} changed since they were published", fix=loop.remedies.publish)
