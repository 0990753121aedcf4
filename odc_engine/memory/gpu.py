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
from odc_engine.memory.arena import Arena, UnitShape, aligned
from odc_engine.memory.far import FarArena


class GpuArena(Arena):
    """In `slots` the first push of a minibatch overwrites what was there, so nothing has to be cleared before it, but
    where this device pushes nothing. Owners add slots up by a kernel.

    With hierarchical transfers a stream says what it has fetched, and a stream waits. Who did not say so in time is
    found out where devices meet.
    """

    def __init__(
        self,
        memory: PeerMemory,
        units: Sequence[UnitShape],
        accumulate: str,
        per_node: int | None = None,
        launch: Launch = USUAL,
    ) -> None:
        self._launch = launch
        super().__init__(memory, units, accumulate, per_node)
        numbers = range(len(self.units))
        self._published = [
            self._at([self._weights_at(i, o)[0] for o in self._owners], units[i].gather) for i in numbers
        ]
        elsewhere = [i for i, holder in enumerate(self._holders) if memory.elsewhere(holder)]
        own = memory.rank - self._owners.start
        self._copies = [Parts(shards, own, elsewhere=elsewhere) for shards in self._shards]
        table = transfers.table([fetches.data_ptr() for fetches in self._fetches], memory.device)
        row, node = 4 * self._fetches[0].stride(0), len(self._fetchers)
        self._flags = [Shards(table, self._column, row * unit, node) for unit in numbers]
        self._missing = torch.zeros(node, dtype=torch.int32, device=memory.device)
        self._looks = int(LOOKS * memory.timeout)

    def _prepare_pushes(self) -> None:
        rank, owners = self.memory.rank, self._owners
        starts = [[self._slot_start(unit, rank, owner) for owner in owners] for unit in range(len(self.units))]
        self._targets = [self._at(each, shape.push) for each, shape in zip(starts, self.units, strict=True)]
        self._pushed: set[int] = set()  # units of which this device has pushed something in this minibatch
        if self._slots > 1:
            pairs = list(zip(self._holders, owners, strict=True))
            self._own_slots = [[self.slot(at, i, rank, o) for at, o in pairs] for i in range(len(self.units))]
            for push, of in dict.fromkeys((u.push, dtype) for u in self.units for dtype in (u.dtype, torch.float32)):
                transfers.compile_writes(push, of, self.memory.device, self._launch)

    def _at(self, starts: Sequence[int], n: int) -> Shards:
        """Return shards of n elements, each at its place in the arena of who holds it in this node."""
        views = [self.memory.view(holder) for holder in self._holders]
        addresses = [view.data_ptr() + start for view, start in zip(views, starts, strict=True)]
        return Shards(transfers.table(addresses, views[0].device), self.memory.rank - self._owners.start, 0, n)

    def gather(self, unit: int, out: Tensor) -> None:
        self.memory.check()
        if self._publication:
            self._wait_for_node(unit)
        shape, part = self.units[unit], self._near_part(out, self.units[unit].gather)
        if part.dtype == shape.dtype:
            self._copies[unit].collect(part)
        else:
            transfers.gather(self._published[unit], part, shape.dtype, self._launch)

    def push(self, unit: int, gradients: Tensor) -> None:
        self.memory.check()
        part = self._near_part(gradients, self.units[unit].push)
        if self._slots == 1:
            transfers.add(self._targets[unit], part, self._launch)
        else:
            transfers.write(self._targets[unit], part, first=unit not in self._pushed, launch=self._launch)
            self._pushed.add(unit)

    def complete(self) -> None:
        if self._slots > 1:
            for unit, slots in enumerate(self._own_slots):
                for slot in slots if unit not in self._pushed else ():
                    slot.zero_()
            self._pushed.clear()

    def gradients(self, unit: int) -> Tensor:
        if self._slots == 1:
            return super().gradients(unit)
        n = self.units[unit].push
        start, rank = self._slot_start(unit, 0, self.memory.rank), self.memory.rank
        slots = self._bytes(rank, start, self._slots * aligned(4 * n)).view(torch.float32)
        total = slots[: transfers.padded(n)]
        transfers.total(slots, self._slots, total.numel(), total)
        return total[:n]

    def clear(self, unit: int) -> None:
        """Do nothing in slots: the next minibatch overwrites them."""
        if self._slots == 1:
            super().clear(unit)

    def meet(self) -> None:
        super().meet()
        if self._publication and (missing := self._missing.nonzero().flatten().tolist()):
            raise self._late(missing, self.memory.timeout)

    def _tell_node(self, unit: int) -> None:
        transfers.tell(self._flags[unit], self._publication)

    def _wait_for_node(self, unit: int) -> None:
        transfers.wait(self._flags[unit], self._publication, self._looks, self._missing)


class FarGpuArena(FarArena, GpuArena):
    """Near devices by kernels, the others through the library."""
