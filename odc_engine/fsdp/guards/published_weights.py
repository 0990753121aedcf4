"""Whether the weights are those that were published. Peers read what was laid out, FSDP2 what is in the parameters.

Versions tell of most changes and cost nothing. Some go past them: of `.data`, by a collective into a shard, by a fused
optimizer. So what FSDP2 hands over is held against what was laid out, too, bit by bit.
"""

import torch
from torch import Tensor

from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.units import Unit, refuse_cast
from odc_engine.fsdp.versions import bits, packed
from odcsim.errors import InputError


class PublishedVersions(Guard):
    """What a forward pass changes of whole weights is its device's alone, and gone with the whole copy."""

    def before_forward(self, unit: Unit) -> Refusals:
        for piece in unit.pieces:
            refuse_cast(piece.managed)
        if self.loop.minibatch.versions.changed(unit):
            yield _changed(self.loop, unit)
        yield from self.throughout(unit)

    before_backward = before_forward

    def throughout(self, unit: Unit) -> Refusals:
        for name in self.loop.minibatch.versions.changed_whole(unit):
            problem = f"a forward pass changes {name}, of which each device has a copy for a while"
            yield InputError(problem, fix="change it between settle() and publish(), or make it a buffer")


class PublishedBits(Guard):
    """At each gather of a forward pass, not once more when its backward pass gathers. On a GPU a look would wait for
    it: all flags are looked at together before gradients are used."""

    def before_forward(self, unit: Unit) -> Refusals:
        """FSDP2 does not hand over the shard of a unit that it has kept whole."""
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
