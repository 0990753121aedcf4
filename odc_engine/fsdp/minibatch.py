"""What this rank has done since weights were published. The next publication replaces it."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from odc_engine.fsdp.given_pushes import GivenPushes
from odc_engine.fsdp.groups import after_backward, in_backward
from odc_engine.fsdp.known_parameters import KnownParameters
from odc_engine.fsdp.pending_gradients import PendingGradients, Reader
from odc_engine.fsdp.reached_parameters import ReachedParameters
from odc_engine.fsdp.units import Unit
from odc_engine.fsdp.versions import WeightVersions
from odcsim.errors import InputError


class Minibatch:
    """Other parts read it and report events to it; only its own methods change it.

    `deferred`: gradients of earlier passes were accumulated without a push. `given_up`: why it cannot be settled any
    more. `cleared`: zero_grad() has cleared all its gradients, and the next synchronization drops what was pushed.
    `turns`: attached optimizers that have stepped, or whose gradients were cleared instead. `looked`: settled because
    somebody read a gradient. `unlike`: on a GPU, flags for shards that differ from what was published, read later.
    `watches`: calls that end with it.
    """

    def __init__(self, units: Sequence[Unit], reader: Reader, way_out: str) -> None:
        self._units, self._reader = units, reader
        self.versions, self.parameters = WeightVersions(units), KnownParameters(units)
        self.reached, self.pending = ReachedParameters(units), PendingGradients(units, reader)
        self.given = GivenPushes(len(units), way_out)
        self.forwarded: set[int] = set()
        self.pushes = 0  # those that retry() mutes, too
        self._pushes_before: int | None = None  # when the backward pass began that has not ended
        self.deferred, self.cleared, self.looked = False, False, False
        self.given_up: InputError | None = None
        self.unlike: list[tuple[Tensor, Unit]] = []
        self.turns: set[int] = set()
        self.watches = ExitStack()

    # Forward and backward passes.

    def first_use(self, unit: Unit) -> bool:
        """Return whether this is the first forward of a unit that a backward may follow."""
        return torch.is_grad_enabled() and unit.index not in self.forwarded

    def use(self, unit: Unit) -> None:
        """Note that FSDP2 needs a unit whole."""
        if unit.phase == "backward":
            self.deferred |= not unit.group.reduces
            if in_backward() and self._pushes_before is None:
                self._pushes_before = self.pushes
                after_backward(self._end_pass)

    def forward(self, unit: Unit) -> None:
        """Note a forward of a unit that no guard has refused."""
        if torch.is_grad_enabled():
            self.forwarded.add(unit.index)

    def _end_pass(self) -> None:
        self._pushes_before = None

    @property
    def in_pass(self) -> bool:
        """Whether a backward has begun and not ended."""
        return self._pushes_before is not None

    @property
    def interrupted(self) -> bool:
        """Whether a backward was interrupted after some of its gradients were pushed or accumulated."""
        return self.in_pass and (self.deferred or self._pushes_before != self.pushes) and not in_backward()

    def lose_pass(self) -> None:
        """Forget gradients of an interrupted pass that were not pushed."""
        self._pushes_before = None
        self.reached.lose_unpushed()

    # Gradients.

    def push(self, unit: Unit, *, attached: bool) -> None:
        if attached and not self.pushes:
            self.pending.lay_all(over=True)
        self.pushes += 1
        self.pending.lay(unit, over=attached)

    @property
    def pushed(self) -> bool:
        """Whether it has gradients, cleared ones not counted."""
        return self.pushes > 0 and not self.cleared

    def note_cleared(self) -> None:
        """Note if zero_grad() has cleared all gradients of an attached loop since a push."""
        if self.pushed and self._reader.look is not None and self.pending.all_cleared():
            self.cleared = True
            self.pending.release()
            self.pending = PendingGradients(self._units, self._reader)

    def drop(self) -> None:
        """Forget what was pushed before zero_grad(). Forward passes may still have their backward, or be in it."""
        self.cleared, self.given_up, self.given.torn = False, None, False
        self.pushes = 0
        self._pushes_before = None if self._pushes_before is None else 0
        self.reached.lose_pushed()

    def suspect(self, unit: Unit, unlike: Tensor) -> None:
        self.unlike.append((unlike, unit))

    def give_up(self, why: InputError) -> None:
        self.given_up = why

    # Synchronizations.

    def look(self) -> None:
        self.looked = True

    def end(self) -> None:
        for unit in self._units:
            for piece in unit.trainable:
                piece.managed.forget()
        self.pending.release()
        self.watches.close()

    def close(self) -> None:
        """Mark gradients that never arrived, so that nobody takes them for others."""
        self.watches.close()
        self.pending.close(pushed=self.pushed)
