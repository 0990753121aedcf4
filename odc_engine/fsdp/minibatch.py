"""What this device has done since weights were published, in one value: with the next publication comes another one."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from odc_engine.fsdp.given_pushes import GivenPushes
from odc_engine.fsdp.groups import after_backward, in_backward
from odc_engine.fsdp.known_parameters import KnownParameters
from odc_engine.fsdp.pending_gradients import PendingGradients, Reader
from odc_engine.fsdp.reached_parameters import ReachedParameters
from odc_engine.fsdp.units import Unit
from odc_engine.fsdp.versions import WeightVersions
from odcsim.errors import InputError


class Minibatch:
    """Others read it, and tell it what happens; none but itself changes what it holds.

    `deferred`: gradients of earlier passes have been kept back. `given_up`: why it cannot be settled any more.
    `looked`: somebody has settled by reading a gradient. `unlike`: on a GPU, where a look would wait for it, whether
    shards are otherwise than they were published. `watches`: what ends with it."""

    def __init__(self, units: Sequence[Unit], reader: Reader, way_out: str) -> None:
        self._units = units
        self.versions, self.parameters = WeightVersions(units), KnownParameters(units)
        self.reached, self.pending = ReachedParameters(units), PendingGradients(units, reader)
        self.given = GivenPushes(len(units), way_out)
        self.forwarded: set[int] = set()
        self.pushes = 0  # those that retry() mutes, too
        self._pushes_before: int | None = None  # when the backward pass began that has not ended
        self.deferred, self.looked = False, False
        self.given_up: InputError | None = None
        self.unlike: list[tuple[Tensor, Unit]] = []
        self.stepped: set[int] = set()  # attached optimizers
        self.watches = ExitStack()

    # Forward and backward passes.

    def first_use(self, unit: Unit) -> bool:
        """Whether this is the first forward pass of a unit that a backward pass may follow."""
        return torch.is_grad_enabled() and unit.index not in self.forwarded

    def use(self, unit: Unit) -> None:
        """FSDP2 wants a unit whole."""
        if unit.phase == "backward":
            self.deferred |= not unit.group.reduces
            if in_backward() and self._pushes_before is None:
                self._pushes_before = self.pushes
                after_backward(self._end_pass)

    def forward(self, unit: Unit) -> None:
        """Nobody has refused it."""
        if torch.is_grad_enabled():
            self.forwarded.add(unit.index)

    def _end_pass(self) -> None:
        self._pushes_before = None

    @property
    def in_pass(self) -> bool:
        """Whether a backward pass has begun that has not ended."""
        return self._pushes_before is not None

    @property
    def interrupted(self) -> bool:
        """Whether one was left that cannot be told apart from what was not."""
        return self.in_pass and (self.deferred or self._pushes_before != self.pushes) and not in_backward()

    def lose_pass(self) -> None:
        """What has been reached and not pushed is lost."""
        self._pushes_before = None
        self.reached.lose_unpushed()

    # Gradients.

    def push(self, unit: Unit, *, attached: bool) -> None:
        if attached and not self.pushes:
            self.pending.lay_all()
        self.pushes += 1
        self.pending.lay(unit)

    def suspect(self, unit: Unit, unlike: Tensor) -> None:
        self.unlike.append((unlike, unit))

    def give_up(self, why: InputError) -> None:
        self.given_up = why

    # Meetings.

    def look(self) -> None:
        self.looked = True

    def step(self, optimizer: Optimizer) -> None:
        """An attached optimizer has stepped."""
        self.stepped.add(id(optimizer))

    def end(self) -> None:
        for unit in self._units:
            for piece in unit.trainable:
                piece.managed.forget()
        self.pending.release()
        self.watches.close()

    def close(self) -> None:
        """Gradients that never arrived are not to be taken for others."""
        self.watches.close()
        self.pending.close(pushed=self.pushes > 0)
