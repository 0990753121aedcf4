"""State of a training loop, shared by all parts of an OnDemand."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from odc_engine.fsdp.groups import start_anew
from odc_engine.fsdp.minibatch import Minibatch
from odc_engine.fsdp.phase import FOLLOWING, Phase, closed
from odc_engine.fsdp.remedies import ATTACHED, BY_HAND, Remedies
from odc_engine.fsdp.units import Unit
from odc_engine.memory.finite import Checks
from odcsim.errors import InputError


class Loop:
    """`published`: the shard of a unit that peers read from this rank. `minibatch`: the current one, replaced rather
    than cleared. `why`: reason for which all ranks have to drop it. `look`: called when somebody reads a gradient
    while an optimizer is attached; it settles, and returns False if no rank has gradients. `remedies`: fixes named in
    error messages, for this kind of loop. `way_out`: fix for gradients that are not finite."""

    def __init__(
        self, model: nn.Module, units: Sequence[Unit], published: Callable[[Unit], Tensor], way_out: str = ""
    ) -> None:
        self.model, self.units, self.published, self._way_out = model, units, published, way_out
        self.remedies = BY_HAND
        self.look: Callable[[], bool] | None = None
        self.phase = Phase.SETTLED
        self.why: InputError | None = None
        self.minibatch = Minibatch(units, self, way_out)

    def enter(self, phase: Phase, why: InputError | None = None) -> None:
        """Change the phase. No other code does."""
        assert phase in FOLLOWING[self.phase], f"{self.phase} does not become {phase}"
        self.phase, self.why = phase, why

    def lose(self, error: BaseException) -> None:
        """End all but close() on this rank, which left a meeting by an error."""
        if self.phase is not Phase.LOST:
            what = str(error) or type(error).__name__
            self.enter(Phase.LOST, InputError(f"devices are out of step ({what})", fix=self.remedies.lost))

    def refuse_closed(self) -> None:
        if self.phase is Phase.CLOSED:
            raise closed()
        if self.phase is Phase.LOST and self.why is not None:
            raise self.why

    def attach(self, look: Callable[[], bool]) -> None:
        """Settle from now on when somebody reads a gradient, by `look`."""
        self.look, self.remedies = look, ATTACHED

    def speak(self, remedies: Remedies) -> None:
        self.remedies, self._way_out = remedies, remedies.finite
        self.minibatch.given.finite = Checks(self._way_out)

    def end(self) -> None:
        """Remove what the current minibatch left in FSDP2 and in `.grad`."""
        self.mend()
        self.minibatch.end()

    def begin(self) -> None:
        """Begin a minibatch with the current weights."""
        former, self.minibatch = self.minibatch, Minibatch(self.units, self, self._way_out)
        self.minibatch.parameters.mark_replaced(former.parameters)

    def mend(self) -> None:
        """Reset FSDP2 after a pass that was interrupted before it pushed: otherwise FSDP2 would continue in the
        middle of it."""
        if self.minibatch.in_pass or any(unit.group.phase != "IDLE" for unit in self.units):
            self.start_anew()

    def start_anew(self) -> None:
        """Reset after an exception in forward or backward."""
        start_anew(self.model, [unit.group for unit in self.units])
        self.minibatch.lose_pass()

    def close(self) -> None:
        self.minibatch.close()
        self.enter(Phase.CLOSED)
