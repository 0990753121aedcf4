"""The arena of GPUs: the same layout. Gathers are copies where the dtype stays, which leave the SMs to compute; what is
converted or added up is moved by kernels, which find parts by addresses and make sums by atomics. Under hybrid sharding
an owner's address is that of its part in the arena that stands for it, and kernels need not know.

Works on whatever memory kernels reach: of GPUs, or (interpreted) of processes. Needs Triton.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from odc_engine.backends.base import PeerMemory
from odc_engine.kernels import transfers
from odc_engine.kernels.transfers import USUAL, Launch, Shards
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.copies import Parts
from odc_engine.memory.far import FarArena


class GpuArena(Arena):
    """With `slots`, the first push of a minibatch overwrites what was there, so nothing has to be cleared before it;
    `complete` does that for units that this device pushed nothing of."""

    def __init__(
        self,
        memory: PeerMemory,
        units: Sequence[UnitShape],
        accumulate: str,
        per_node: int | None = None,
        launch: Launch = USUAL,
    ) -> None:
        super().__init__(memory, units, accumulate, per_node)
        self._launch = launch
        numbers = range(len(self.units))
        self._published = [self._at([self._weights_at(i, o)[0] for o in self._owners], i, "gather") for i in numbers]
        self._sums = [self._at([self._slot_start(i, memory.rank, o) for o in self._owners], i, "push") for i in numbers]
        self._copies = [Parts(shards, memory.rank - self._owners.start) for shards in self._shards]
        self._pushed = dict.fromkeys(numbers, False)  # in this minibatch

    def _at(self, starts: list[int], unit: int, what: str) -> Shards:
        """A unit's shards, each at its place in the arena of who stands for its owner."""
        views = [self.memory.view(self._stand_in(owner)) for owner in self._owners]
        addresses = [view.data_ptr() + start for view, start in zip(views, starts, strict=True)]
        table = transfers.table(addresses, views[0].device)
        return Shards(table, self.memory.rank - self._owners.start, 0, getattr(self.units[unit], what))

    def gather(self, unit: int, out: Tensor) -> None:
        self.memory.check()
        shape, part = self.units[unit], self._near_part(out, self.units[unit].gather)
        if part.dtype == shape.dtype:
            self._copies[unit].collect(part)
        else:
            transfers.gather(self._published[unit], part, shape.dtype, self._launch)

    def push(self, unit: int, gradients: Tensor) -> None:
        self.memory.check()
        part = self._near_part(gradients, self.units[unit].push)
        if self._slots > 1:
            transfers.write(self._sums[unit], part, first=not self._pushed[unit], launch=self._launch)
        else:
            transfers.add(self._sums[unit], part, self._launch)
        self._pushed[unit] = True

    def complete(self) -> None:
        """Before devices meet: slots of units that nothing was pushed of hold the last minibatch's gradients."""
        for unit, pushed in self._pushed.items():
            if self._slots > 1 and not pushed:
                for owner in self._owners:
                    self.slot(self._stand_in(owner), unit, self.memory.rank, owner).zero_()
            self._pushed[unit] = False

    def gradients(self, unit: int) -> Tensor:
        total = self.slot(self.memory.rank, unit, 0)
        if self._slots > 1:
            start, stride = self._slot_start(unit, 0, self.memory.rank), self._slot_size(unit)
            slots = self._bytes(self.memory.rank, start, self._slots * stride).view(torch.float32)
            transfers.total(slots, self._slots, self.units[unit].push, total, self._launch)
        return total

    def clear(self, unit: int) -> None:
        if self._slots == 1:
            super().clear(unit)


class FarGpuArena(FarArena, GpuArena):
    """Near devices by kernels, the others through the library."""
