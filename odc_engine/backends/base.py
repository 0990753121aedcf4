"""What every transport offers, in the words that all use: meet, check, take, refill, fail, explain, close.

`PeerMemory` is memory that peers reach, which some can lock (`Lockable`) and some reach over a network alone
(`FarMemory`); `Collectives` stands there for a backend that has those instead. `Host` is the same devices as processes:
what the others meet through, and hear from who is gone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from odc_engine.backends.patience import LONGER
from odc_engine.errors import PeerLost
from odc_engine.places.place import HOST, Place

ROOMS = 4  # meetings that lanes hold independently of each other
MAIN, COMM = 0, 1  # the room of the training loop, and that of a lane whose transfers meet
END = 2  # and that of devices which are about to free what only all can free together


class Meeting(ABC):
    """All devices of a run, as one of them meets the others."""

    rank: int
    size: int

    @abstractmethod
    def meet(self, room: int) -> None:
        """Return when every device has come to this room as often as this one. Raises PeerLost."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Peers' views are void from now on."""


class Counting(Meeting):
    """Whose devices share a count, too, and can tell who is gone without meeting."""

    timeout: float  # seconds after which a silent peer is reported

    def stopped(self) -> list[int]:
        """Devices that are seen to stand still now, and so will not come, however long one waits."""
        return []

    def silent(self, devices: list[int], what: str) -> PeerLost:
        """For devices that have not done in time what others wait for."""
        return PeerLost(devices, f"{what}; {LONGER}")

    def check(self) -> None:
        """Raise PeerLost where a peer is known to have failed. Called before every transfer, so it must be quick."""

    @abstractmethod
    def take(self) -> int:
        """0, 1, 2, ... in the order in which devices ask, each number to one of them. Nobody meets, none is held up."""

    @abstractmethod
    def refill(self) -> None:
        """Start anew from 0. Called by one device, between two meetings in which nobody takes."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Tell peers that this device ends, and why."""


class Host(Counting):
    """Devices as processes that can meet: by shared memory on one machine, by a network on several."""

    group: dist.ProcessGroup | None
    one_clock = True  # its processes share a machine's

    @abstractmethod
    def explain(self) -> Exception | None:
        """Whose fault it may be that a connection broke or timed out, which names nobody."""


class Collectives(Meeting):
    """What stands where others have memory: a process group, whose collectives are FSDP2's own."""

    group: dist.ProcessGroup | None  # None: torch's own
    place: Place = HOST

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    @abstractmethod
    def mesh(self) -> DeviceMesh:
        """What FSDP2 shards over."""

    @abstractmethod
    def finish(self) -> None:
        """Return when all that this device was given is done."""


class PeerMemory(Counting):
    """A symmetric arena: every device owns one of the same size and sees those of all near ones."""

    place: Place = HOST  # where arenas lie, and what works on them

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    def why_not_add(self) -> str:
        """Why devices cannot all add to one sum of each at once and lose nothing, "" where they can: the same words on
        all. Known before there are arenas, but of a far memory, whose near devices are not."""
        return ""

    def elsewhere(self, device: int) -> bool:  # noqa: ARG002
        """Whether a near device's arena lies on another GPU than this one's. Known once there are arenas."""
        return False

    @property
    def near(self) -> range:
        """Devices whose arenas `view` shows, this one among them. Known once there are arenas."""
        return range(self.size)

    @abstractmethod
    def allocate(self, nbytes: int) -> None:
        """Make this device's arena and attach everybody's. Every device calls it once, with the same size."""

    @abstractmethod
    def view(self, device: int) -> Tensor:
        """A near device's arena as bytes."""


class Lockable(PeerMemory):
    """Memory of processors: two that add to a sum at once have to take turns."""

    @abstractmethod
    def lock(self, device: int, start: int, stop: int) -> AbstractContextManager[None]:
        """Hold bytes start to stop of a device's arena against other writers. Dies with its holder."""

    @abstractmethod
    def try_lock(self, device: int, start: int, stop: int) -> bool:
        """Hold the bytes until `unlock`, but only if nobody else holds them now."""

    @abstractmethod
    def unlock(self, device: int, start: int, stop: int) -> None: ...


class FarMemory(PeerMemory):
    """Reaches devices that are not near by fetching from and sending to their arenas, in the order of the calls'
    stream. What is fetched into or sent from lies in the own arena, where a network may reach it."""

    every_near: tuple[range, ...] = ()  # what `near` is of each device, the same on all. Known once there are arenas

    @property
    def all_near_from_the_start(self) -> bool:
        """Whether it is known before there are arenas that no device has far ones: to those nothing can be added."""
        return False

    @property
    def all_near(self) -> bool:
        """Whether no device has far ones."""
        return all(len(near) == self.size for near in self.every_near)

    @abstractmethod
    def fetch(self, device: int, start: int, into: Tensor) -> None:
        """Copy bytes of a device's arena, from `start` on, into bytes of the own one."""

    def fetch_all(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        """Fetch ranges of devices' arenas into the own one, as one batch. A fetch waits for the one before."""
        for device, start, into in places:
            self.fetch(device, start, into)

    @abstractmethod
    def send(self, device: int, start: int, data: Tensor) -> None:
        """Copy bytes into a device's arena. `data` stays as it is until `arrive` has said that they are there."""

    def send_all(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        """Send ranges of the own arena to devices', as one batch. The same ones may go to several."""
        for device, start, data in places:
            self.send(device, start, data)

    @abstractmethod
    def arrive(self) -> None:
        """Everything that this device has sent is there, and a fetch from now on finds it."""
