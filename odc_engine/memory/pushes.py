"""Push one rank's gradients of one unit on a GPU: add to the owner's sum by atomics, or write to slots, which owners
add up."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from odc_engine.kernels import transfers
from odc_engine.kernels.transfers import Launch, Shards


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
