"""A training loop as all parts of an OnDemand see it."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from odc_engine.fsdp.groups import start_anew
from odc_engine.fsdp.minibatch import Minibatch
from odc_engine.fsdp.phase import FOLLOWING, Phase, closed
from odc_engine.fsdp.remedies import ATTACHED, BY_HAND
from odc_engine.fsdp.units import Unit
from odcsim.errors import InputError


class Loop:
    """`published`: what peers read of a unit of this device. `minibatch`: the one that runs, replaced and not cleared.
    `why`: why all devices have to drop it. `look`: what settles where somebody reads a gradient, with an optimizer
    attached. `remedies`: ways out of a refusal, in words of whose loop it is. `way_out`: of gradients not finite."""

    def __init__(
        self, model: nn.Module, units: Sequence[Unit], published: Callable[[Unit], Tensor], way_out: str = ""
    ) -> None:
        self.model, self.units, self.published, self._way_out = model, units, published, way_out
        self.remedies = BY_HAND
        self.look: Callable[[], None] | None = None
        self.phase = Phase.SETTLED
        self.why: InputError | None = None
        self.minibatch = Minibatch(units, self, way_out)

    def enter(self, phase: Phase, why: InputError | None = None) -> None:
        """The one place where a phase ends."""
        assert phase in FOLLOWING[self.phase], f"{self.phase} does not become {phase}"
        self.phase, self.why = phase, why

    def refuse_closed(self) -> None:
        if self.phase is Phase.CLOSED:
            raise closed()

    def attach(self, look: Callable[[], None]) -> None:
        """Whoever looks at gradients settles from now on."""
        self.look, self.remedies = look, ATTACHED

    def end(self) -> None:
        """Nothing of the minibatch that runs is left in FSDP2 or in `.grad`."""
        self.mend()
        self.minibatch.end()

    def begin(self) -> None:
        """Another minibatch, of the weights that there are now."""
        former, self.minibatch = self.minibatch, Minibatch(self.units, self, self._way_out)
        self.minibatch.parameters.mark_replaced(former.parameters)

    def mend(self) -> None:
        """After a pass that was interrupted before it left a trace: FSDP2 would go on in the middle of it."""
        if self.minibatch.in_pass or any(unit.group.phase != "IDLE" for unit in self.units):
            self.start_anew()

    def start_anew(self) -> None:
        """After an exception in a forward or backward pass."""
        start_anew(self.model, [unit.group for unit in self.units])
        self.minibatch.lose_pass()

    def close(self) -> None:
        self.minibatch.close()
        self.enter(Phase.CLOSED)
