"""The arena of GPUs: the same layout. Gathers are copies where the dtype stays, which leave the SMs to compute; what is
converted or added up is moved by kernels, which find parts by addresses and make sums by atomics. Under hybrid sharding
an owner's address is that of its part in the arena that stands for it, and kernels need not know.

Works on whatever memory kernels reach: of GPUs, or (interpreted) of processes. Needs Triton.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from odc_engine.backends.patience import LOOKS
from odc_engine.kernels import transfers
from odc_engine.kernels.copies import Parts
from odc_engine.kernels.transfers import USUAL, Shards
from odc_engine.memory.arena import Arena, aligned
from odc_engine.memory.far import FarArena


class GpuArena(Arena):
    """In `slots` the first push of a minibatch overwrites what was there, so nothing has to be cleared before it, but
    where this device pushes nothing. Owners add slots up by a kernel.

    With hierarchical transfers a stream says what it has fetched, and a stream waits. Who did not say so in time is
    found out where devices meet.
    """

    launch = USUAL

    def _prepare(self) -> None:
        """Give kernels the addresses of all that they move, and copies their parts."""
        memory, holders, own = self.memory, self._holders, self.memory.rank - self._owners.start
        views = [memory.view(holder) for holder, _ in holders]
        elsewhere = [i for i, (holder, _) in enumerate(holders) if memory.elsewhere(holder)]
        self._copies = [Parts(shards, own, elsewhere=elsewhere) for shards in self._shards]

        def at(starts: Sequence[int], n: int) -> Shards:
            addresses = [view.data_ptr() + start for view, start in zip(views, starts, strict=True)]
            return Shards(transfers.table(addresses, memory.device), own, 0, n)

        self._published, self._targets, self._own_slots = [], [], []
        for unit, shape in enumerate(self.units):
            self._published.append(at([self._weights_at(unit, owner)[0] for _, owner in holders], shape.gather))
            self._targets.append(at([self._slot_start(unit, memory.rank, owner) for _, owner in holders], shape.push))
            self._own_slots.append([self.slot(holder, unit, memory.rank, owner) for holder, owner in holders])
            for dtype in {shape.dtype, torch.float32} if self._slots > 1 else ():
                transfers.compile_writes(shape.push, dtype, memory.device, self.launch)
        self._pushed: set[int] = set()  # units of which this device has pushed something in this minibatch
        flags = transfers.table([fetches.data_ptr() for fetches in self._fetches], memory.device)
        row, node = 4 * self._fetches[0].stride(0), len(self._fetchers)
        self._flags = [Shards(flags, self._column, row * unit, node) for unit in range(len(self.units))]
        self._missing = torch.zeros(node, dtype=torch.int32, device=memory.device)
        self._looks = int(LOOKS * memory.timeout)

    def gather(self, unit: int, out: Tensor) -> None:
        self.memory.check()
        if self._publication:
            self._wait_for_node(unit)
        if out.dtype == (dtype := self.units[unit].dtype):
            self._copies[unit].collect(out)
        else:
            transfers.gather(self._published[unit], out, dtype, self.launch)

    def push(self, unit: int, gradients: Tensor) -> None:
        self.memory.check()
        if self._slots == 1:
            transfers.add(self._targets[unit], gradients, self.launch)
        else:
            transfers.write(self._targets[unit], gradients, first=unit not in self._pushed, launch=self.launch)
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
