"""The arena of GPUs: the same layout. Gathers are copies where the dtype stays, which leave the SMs to compute; what is
converted or added up is moved by kernels, which find parts by addresses and make sums by atomics. Under hybrid sharding
an owner's address is that of its part in the arena that stands for it, and kernels need not know.

Works on whatever memory kernels reach: of GPUs, or (interpreted) of processes. Needs Triton.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from odc_engine.backends.base import PeerMemory
from odc_engine.backends.patience import LOOKS
from odc_engine.kernels import transfers
from odc_engine.kernels.copies import Parts
from odc_engine.kernels.transfers import USUAL, Launch, Shards
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.brought import Brought
from odc_engine.memory.far import FarArena
from odc_engine.memory.pushes import Atomic, Pushes, Sums


class GpuArena(Arena):
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
        elsewhere = [i for i, owner in enumerate(self._owners) if memory.elsewhere(self._stand_in(owner))]
        own = memory.rank - self._owners.start
        self._copies = [Parts(shards, own, elsewhere=elsewhere) for shards in self._shards]
        self._pushes = [self._pushes_of(unit) for unit in numbers]

    def _at(self, starts: list[int], unit: int, what: str) -> Shards:
        """A unit's shards, each at its place in the arena of who stands for its owner."""
        views = [self.memory.view(self._stand_in(owner)) for owner in self._owners]
        addresses = [view.data_ptr() + start for view, start in zip(views, starts, strict=True)]
        table = transfers.table(addresses, views[0].device)
        return Shards(table, self.memory.rank - self._owners.start, 0, getattr(self.units[unit], what))

    def _told_by_node(self) -> Brought:
        told = super()._told_by_node()
        return BroughtOnStreams(self.memory, told.rows, told.first)

    def _pushes_of(self, unit: int) -> Pushes:
        rank, size = self.memory.rank, self._slot_size(self.units[unit])
        slots = self._at([self._slot_start(unit, rank, o) for o in self._owners], unit, "push")
        if self._slots == 1:
            return Atomic(slots, self.slot(rank, unit, 0), self._launch)
        shape = self.units[unit]
        for dtype in dict.fromkeys((shape.dtype, torch.float32)):
            transfers.compile_writes(shape.push, dtype, self.memory.device, self._launch)
        taken = self._bytes(rank, self._slot_start(unit, 0, rank), self._slots * size).view(torch.float32)
        given = [self.slot(self._stand_in(o), unit, rank, o) for o in self._owners]
        return Sums(slots, given, taken, self._slots, self._launch)

    def gather(self, unit: int, out: Tensor) -> None:
        self.memory.check()
        self._brought.wait_for(unit)
        shape, part = self.units[unit], self._near_part(out, self.units[unit].gather)
        if part.dtype == shape.dtype:
            self._copies[unit].collect(part)
        else:
            transfers.gather(self._published[unit], part, shape.dtype, self._launch)

    def push(self, unit: int, gradients: Tensor) -> None:
        self.memory.check()
        self._pushes[unit].push(self._near_part(gradients, self.units[unit].push))

    def complete(self) -> None:
        for pushes in self._pushes:
            pushes.complete()

    def gradients(self, unit: int) -> Tensor:
        return self._pushes[unit].total()

    def clear(self, unit: int) -> None:
        """Do nothing: the next minibatch overwrites slots."""
        if self._slots == 1:
            super().clear(unit)


class BroughtOnStreams(Brought):
    """A stream tells when it has come so far, and a stream waits. Who did not tell in time is found out where devices
    meet."""

    def __init__(self, memory: PeerMemory, rows: Sequence[Tensor], first: int) -> None:
        super().__init__(memory, rows, first)
        table = transfers.table([row.data_ptr() for row in rows], memory.device)
        units, place, node = len(rows[0]), memory.rank - first, len(rows)
        self._flags = [Shards(table, place, 4 * rows[0].stride(0) * unit, node) for unit in range(units)]
        self._missing = torch.zeros(node, dtype=torch.int32, device=memory.device)
        self._looks = int(LOOKS * memory.timeout)

    def tell(self, unit: int) -> None:
        transfers.tell(self._flags[unit], self._round)

    def wait_for(self, unit: int) -> None:
        if self._round:
            transfers.wait(self._flags[unit], self._round, self._looks, self._missing)

    def check(self) -> None:
        if self._round and (missing := self._missing.nonzero().flatten().tolist()):
            raise self._late(missing, self._memory.timeout)


class FarGpuArena(FarArena, GpuArena):
    """Near devices by kernels, the others through the library."""
