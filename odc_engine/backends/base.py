"""The one interface that every transport offers: memory that peers can reach, locks on it, and meetings."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import torch
from torch import Tensor

ROOMS = 4  # meetings that lanes hold independently of each other
MAIN, COMM = 0, 1  # the room of the training loop, and that of a lane whose transfers meet


class PeerMemory(ABC):
    """A symmetric arena: every device owns one of the same size and sees those of all others."""

    rank: int
    size: int
    device = torch.device("cpu")  # where arenas lie

    @abstractmethod
    def allocate(self, nbytes: int) -> None:
        """Make this device's arena and attach everybody's. Every device calls it once, with the same size."""

    @abstractmethod
    def view(self, device: int) -> Tensor:
        """A device's arena as bytes."""

    @abstractmethod
    def lock(self, device: int, start: int, stop: int) -> AbstractContextManager[None]:
        """Hold bytes start to stop of a device's arena against other writers. Dies with its holder."""

    @abstractmethod
    def try_lock(self, device: int, start: int, stop: int) -> bool:
        """The same until `unlock`, but only if nobody else holds them now."""

    @abstractmethod
    def unlock(self, device: int, start: int, stop: int) -> None: ...

    def check(self) -> None:  # noqa: B027 - where only a meeting can tell, nothing
        """Raise PeerLost where a peer is known to have failed. Called before every transfer, so it must be quick."""

    @abstractmethod
    def meet(self, room: int) -> None:
        """Return when every device has come to this room as often as this one. Raises PeerLost."""

    @abstractmethod
    def take(self) -> int:
        """0, 1, 2, ... in the order in which devices ask, each number to one of them. Nobody meets, none is held up."""

    @abstractmethod
    def refill(self) -> None:
        """Start anew from 0. Called by one device, between two meetings in which nobody takes."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Peers' views are void from now on."""
