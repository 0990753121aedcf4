"""The interface of guards: each is asked before every operation of the loop, and returns why it must be refused."""

from collections.abc import Iterator

from torch import Tensor

from odc_engine.fsdp.loop import Loop
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError

Refusals = Iterator[InputError]


class Guard:
    """Reads the loop's state and keeps none of its own per minibatch. By default it has no objection."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def begin(self) -> None:
        """Called when weights are published, with a new minibatch in the loop."""

    def before_pass(self) -> Refusals:
        """Called before a forward of the whole model."""
        return iter(())

    def before_forward(self, unit: Unit) -> Refusals:  # noqa: ARG002 - for who looks at units
        """Called when FSDP2 needs a unit whole, even if it is whole already."""
        return iter(())

    def before_backward(self, unit: Unit) -> Refusals:  # noqa: ARG002
        return iter(())

    def before_gather(self, unit: Unit, mine: Tensor | None) -> Refusals:  # noqa: ARG002
        """Called before a gather. `mine`: this rank's shard of the unit, as FSDP2 passes it."""
        return iter(())

    def before_push(self, unit: Unit) -> Refusals:  # noqa: ARG002
        return iter(())

    def before_settle(self) -> Refusals:
        """Return why `.grad` would be wrong after settle()."""
        return (each for unit in self.loop.units for each in self.throughout(unit))

    def throughout(self, unit: Unit) -> Refusals:  # noqa: ARG002
        """Return what has changed in a unit that must not change during a minibatch. Called before settle()."""
        return iter(())
