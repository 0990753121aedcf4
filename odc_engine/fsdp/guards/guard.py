"""What a guard is: somebody who is asked before each thing that a loop does, and says why it must not be done."""

from collections.abc import Iterator

from torch import Tensor

from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError

Refusals = Iterator[InputError]


class Guard:
    """Has what it needs from the loop, and nothing of its own of a minibatch. Usually it has nothing to say."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def begin(self) -> None:
        """Weights are published, and the loop has another minibatch."""

    def before_pass(self) -> Refusals:
        """A forward pass of the whole model."""
        return iter(())

    def before_forward(self, unit: Unit) -> Refusals:  # noqa: ARG002 - for who looks at units
        """FSDP2 wants it whole, be it so already or not."""
        return iter(())

    def before_backward(self, unit: Unit) -> Refusals:  # noqa: ARG002
        return iter(())

    def before_gather(self, unit: Unit, mine: Tensor | None) -> Refusals:  # noqa: ARG002
        """`mine`: the unit's shard as FSDP2 hands it over."""
        return iter(())

    def before_push(self, unit: Unit) -> Refusals:  # noqa: ARG002
        return iter(())

    def before_settle(self) -> Refusals:
        """Why `.grad` would not be what it is taken for."""
        return (each for unit in self.loop.units for each in self.throughout(unit))

    def throughout(self, unit: Unit) -> Refusals:  # noqa: ARG002
        """What stays as it is while a minibatch runs. Asked before settle()."""
        return iter(())
