"""Push one rank's gradients of one unit on a GPU: add to the owner's sum by atomics, or write to slots, which owners
add up."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from odc_engine.kernels import transfers
from odc_engine.kernels.copies import Parts
from odc_engine.kernels.transfers import Launch, Shards

SUM = -1  # what a slot holds instead of so many gradients as they came


class Pushes(ABC):
    @abstractmethod
    def push(self, gradients: Tensor) -> None:
        """Push the parts of all owners that are reached by address, end to end."""

    @abstractmethod
    def complete(self) -> None:
        """End the pushes of this minibatch. Called before ranks synchronize."""

    @abstractmethod
    def total(self) -> Tensor:
        """Return the sum over ranks. Only after a synchronization."""


class Atomic(Pushes):
    """Every rank adds to one sum of each owner, `own` among them."""

    def __init__(self, sums: Shards, own: Tensor, launch: Launch) -> None:
        self._sums, self._own, self._launch = sums, own, launch

    def push(self, gradients: Tensor) -> None:
        transfers.add(self._sums, gradients, self._launch)

    def complete(self) -> None: ...

    def total(self) -> Tensor:
        return self._own


class Sums(Pushes):
    """Slots that are fp32 sums. The first push of a minibatch overwrites what was there, so nothing has to be cleared
    before it, but where this device pushes nothing. `given`: its slots. `taken`: everybody's for this device."""

    def __init__(self, slots: Shards, given: Sequence[Tensor], taken: Tensor, writers: int, launch: Launch) -> None:
        self._slots, self._given, self._taken, self._writers, self._launch = slots, given, taken, writers, launch
        self._pushed = False

    def push(self, gradients: Tensor) -> None:
        transfers.write(self._slots, gradients, first=not self._pushed, launch=self._launch)
        self._pushed = True

    def complete(self) -> None:
        for slot in () if self._pushed else self._given:
            slot.zero_()
        self._pushed = False

    def total(self) -> Tensor:
        total = self._taken[: transfers.padded(self._slots.n)]
        transfers.total(self._taken, self._writers, total.numel(), total)
        return total[: self._slots.n]


class AsTheyCame(Pushes):
    """Slots that hold a minibatch's first two gradients of 16 bits as they were pushed: copied, no SM takes part, and
    half the bytes of fp32. A third finds both, adds them up and leaves an fp32 sum in their place; gradients of 32 bits
    are a sum from the first on. A device's slot at itself is a sum at all times, and takes everybody's in the end.

    `given`: bytes of this device's slots at all owners. `taken`: of everybody's for this device, as many each. `told`:
    of each device, what lies in its slots at others, and in the one at itself. `elsewhere`: owners on other GPUs.
    """

    def __init__(
        self,
        slots: Shards,
        given: Sequence[Tensor],
        taken: Tensor,
        told: Sequence[Tensor],
        elsewhere: Sequence[int],
        launch: Launch,
    ) -> None:
        n, rank, half = slots.n, slots.rank, taken.numel() // len(given) // 2
        self._slots, self._taken, self._launch = slots, taken, launch
        self._sums = [slot[: 4 * n].view(torch.float32) for slot in given]
        self._halves = [[slot[at : at + 2 * n].view(torch.bfloat16) for slot in given] for at in (0, half)]
        self._whole = Parts(self._sums, rank, elsewhere=elsewhere)
        self._copies = [Parts(parts, rank, elsewhere=elsewhere, others=True) for parts in self._halves]
        own = transfers.table([given[rank].data_ptr()], taken.device)
        self._own = Shards(own, 0, 0, n)
        self._told, self._hears = told[rank], Parts(told, rank, elsewhere=elsewhere)
        self._counts = torch.empty(len(told), told[rank].numel(), dtype=torch.int32, device=taken.device)
        self._held = 0  # at others

    def push(self, gradients: Tensor) -> None:
        if gradients.dtype == torch.bfloat16 and 0 <= self._held < len(self._copies):
            self._copies[self._held].spread(gradients)
            own = gradients[self._slots.rank * self._own.n :][: self._own.n]
            transfers.write(self._own, own, first=self._held == 0, launch=self._launch)
            self._held += 1
        elif gradients.dtype == torch.float32 and self._held == 0:
            self._whole.spread(gradients)
            self._held = SUM
        else:
            self._add_up()
            transfers.write(self._slots, gradients, first=self._held == 0, launch=self._launch)
            self._held = SUM

    def _add_up(self) -> None:
        """Leave sums where gradients lie. By way of spare memory, since both take the same place."""
        for device, into in enumerate(self._sums):
            if self._held > 0 and device != self._slots.rank:
                total = self._halves[0][device].float()
                for more in self._halves[1 : self._held]:
                    total += more[device]
                into.copy_(total)

    def complete(self) -> None:
        self._told.copy_(torch.tensor([self._held, SUM if self._held else 0], dtype=torch.int32, device="cpu"))
        self._held = 0

    def total(self) -> Tensor:
        self._hears.collect(self._counts.view(-1))
        transfers.merge(self._taken, self._counts, transfers.padded(self._own.n), self._slots.rank)
        return self._sums[self._slots.rank]
