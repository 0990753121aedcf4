"""The interface of transports: meet (synchronize), check, take, refill, fail, explain, close.

`PeerMemory` is memory that peers reach; some of it can be locked (`Lockable`), some is reached over a network only
(`FarMemory`). `Collectives` replaces it in a backend without one-sided access. `Host` is the same ranks as processes:
the others synchronize through it and learn from it which ranks are gone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from odc_engine.backends.patience import LONGER
from odc_engine.errors import PeerLost
from odc_engine.places.place import HOST, Place

ROOMS = 4  # number of independent synchronizations, each with its own count
MAIN, COMM = 0, 1  # for the training loop, and for a lane whose transfers synchronize


class Meeting(ABC):
    """All ranks of a run, as one of them synchronizes with the others."""

    rank: int
    size: int

    @abstractmethod
    def meet(self, room: int) -> None:
        """Wait until every rank has called meet() for this room as often as this one. Raises PeerLost."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. Peers' views are invalid from now on."""


class Counting(Meeting):
    """A Meeting with a counter that ranks share, which can also tell which ranks are gone."""

    timeout: float  # seconds after which a silent peer is reported

    def stopped(self) -> list[int]:
        """Return the ranks that are stopped now, and so will not come however long one waits."""
        return []

    def silent(self, devices: list[int], what: str) -> PeerLost:
        """Return the error for ranks that did not do in time what others wait for."""
        return PeerLost(devices, f"{what}; {LONGER}")

    def check(self) -> None:
        """Raise PeerLost if a peer is known to have failed. It is called before every transfer, so it must be quick."""

    def leave(self) -> bool:
        """Come to no more meetings, and wait until no other rank comes to any. Returns whether all have left so, and
        none was lost. Raises PeerLost for those that stay. Ranks that end together need not."""
        return True

    @abstractmethod
    def take(self) -> int:
        """Return 0, 1, 2, ... in the order in which ranks ask, each number once. Does not synchronize."""

    @abstractmethod
    def refill(self) -> None:
        """Reset the counter to 0. One rank calls it, between two synchronizations in which none takes."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Tell peers that this rank ends, and why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.fail(error)
        self.close()


class Host(Counting):
    """Ranks as processes that can synchronize: through shared memory on one machine, over a network on several."""

    group: dist.ProcessGroup | None
    one_clock = True  # its processes share a machine's

    @abstractmethod
    def explain(self) -> Exception | None:
        """Name the rank that may have caused a broken connection or a timeout, which libraries report without one."""


class Collectives(Meeting):
    """Replaces memory in backends that use collectives: a process group, on which FSDP2's own collectives run."""

    group: dist.ProcessGroup | None  # None: torch's own
    place: Place = HOST

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    @abstractmethod
    def mesh(self) -> DeviceMesh:
        """Return the mesh over which FSDP2 shards."""

    @abstractmethod
    def finish(self) -> None:
        """Return when all work of this rank is done."""


class PeerMemory(Counting):
    """A symmetric arena: every rank owns one of the same size and sees those of all near ranks."""

    place: Place = HOST  # where arenas lie, and what works on them

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    def why_not_add(self) -> str:
        """Return why ranks cannot add to one sum at once without loss, "" if they can; the same words on all ranks.

        Known before there are arenas, except for a far memory, whose near ranks are not.
        """
        return ""

    def elsewhere(self, device: int) -> bool:  # noqa: ARG002
        """Whether a near rank's arena is on another GPU than this one's. Known once there are arenas."""
        return False

    @property
    def near(self) -> range:
        """Return the ranks whose arenas `view` shows, this one included. Known once there are arenas."""
        return range(self.size)

    @abstractmethod
    def allocate(self, nbytes: int) -> None:
        """Make this rank's arena and attach those of all. Every rank calls it once, with the same size."""

    @abstractmethod
    def view(self, device: int) -> Tensor:
        """Return a near rank's arena as bytes."""


class Lockable(PeerMemory):
    """Memory of CPUs: ranks that add to one sum at the same time have to take turns."""

    @abstractmethod
    def lock(self, device: int, start: int, stop: int) -> AbstractContextManager[None]:
        """Lock bytes start to stop of a rank's arena against other writers. The lock ends if its holder dies."""

    @abstractmethod
    def try_lock(self, device: int, start: int, stop: int) -> bool:
        """Lock the bytes until `unlock`, but only if no other rank holds them now."""

    @abstractmethod
    def unlock(self, device: int, start: int, stop: int) -> None: ...


class FarMemory(PeerMemory):
    """Fetches from and sends to the arenas of ranks that are not near, in stream order. Bytes lie in this rank's
    own arena, where a network may reach them."""

    every_near: tuple[range, ...] = ()  # what `near` is of each device, the same on all. Known once there are arenas

    @property
    def all_near_from_the_start(self) -> bool:
        """Whether it is known before there are arenas that all ranks are near, so that ranks can add to sums."""
        return False

    @property
    def all_near(self) -> bool:
        """Whether all ranks are near."""
        return all(len(near) == self.size for near in self.every_near)

    @abstractmethod
    def fetch(self, device: int, start: int, into: Tensor) -> None:
        """Copy bytes of a rank's arena, from `start` on, into bytes of the own one."""

    def fetch_all(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        """Fetch ranges of ranks' arenas into the own one, as one batch. A fetch waits for the one before."""
        for device, start, into in places:
            self.fetch(device, start, into)

    @abstractmethod
    def send(self, device: int, start: int, data: Tensor) -> None:
        """Copy bytes into a rank's arena. `data` must not change until `arrive` has returned."""

    def send_all(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        """Send ranges of the own arena to ranks, as one batch. The same range may go to several."""
        for device, start, data in places:
            self.send(device, start, data)

    @abstractmethod
    def arrive(self) -> None:
        """Wait until everything that this rank has sent has arrived, so that a later fetch reads it."""
