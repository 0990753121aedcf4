"""All guards. If two of them object, the user reads the message of the first."""

from collections.abc import Callable

from odc_engine.fsdp.guards.foreign_parameters import ForeignParameters
from odc_engine.fsdp.guards.frozen_parameters import FrozenParameters
from odc_engine.fsdp.guards.gradient_hooks import GradientHooks
from odc_engine.fsdp.guards.gradients import KeptGradients, TouchedGradients
from odc_engine.fsdp.guards.guard import Guard, Refusals
from odc_engine.fsdp.guards.passes import BrokenMinibatches, PassesInOrder, SecondDerivatives, UnfinishedPasses
from odc_engine.fsdp.guards.published_weights import PublishedBits, PublishedVersions
from odc_engine.fsdp.guards.settings import Settings
from odc_engine.fsdp.loop import Loop

GUARDS: tuple[Callable[[Loop], Guard], ...] = (
    BrokenMinibatches,
    PublishedVersions,
    PassesInOrder,
    PublishedBits,
    UnfinishedPasses,
    SecondDerivatives,
    ForeignParameters,
    FrozenParameters,
    Settings,
    GradientHooks,
    KeptGradients,
    TouchedGradients,
)


class Guards:
    """Ask all guards in order, and raise the first objection."""

    def __init__(self, loop: Loop) -> None:
        self._guards = [kind(loop) for kind in GUARDS]

    def begin(self) -> None:
        for guard in self._guards:
            guard.begin()

    def say(self, of: Callable[[Guard], Refusals]) -> Refusals:
        return (refusal for guard in self._guards for refusal in of(guard))

    def ask(self, of: Callable[[Guard], Refusals]) -> None:
        for refusal in self.say(of):
            raise refusal
