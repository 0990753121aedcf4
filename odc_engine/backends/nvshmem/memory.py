"""GPUs of one node or many, a process for each: arenas in NVSHMEM's symmetric heap.

Where a peer's arena has an address here, as inside a node, kernels move its bytes as under cuda_ipc. Beyond, bytes are
fetched and sent on the streams that FSDP2 calls for transfers on, by the host's calls or from kernels: whichever the
library is made for. The training loops meet through the host, which can tell who does not come, and then once more
through NVSHMEM where there are far devices: only its barrier promises that what came over a network can be read.

What lies on a stream may wait for a device that is gone, without end and without a word, and so may what only all can
do together: start, allocate, free, end. So the host never waits for these alone: another thread does, while this one
looks for who is gone, and gives up in time. What only all can do together is left out then.

All that touches NVSHMEM is in `library`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.aside import Result
from odc_engine.backends.base import MAIN, FarMemory, Host
from odc_engine.backends.collectives import agreed
from odc_engine.backends.gpus import check_sizes
from odc_engine.backends.links import GpuLinks, asked
from odc_engine.backends.nvshmem.process import PROCESS, Process, check_devices
from odc_engine.errors import PeerLost
from odc_engine.places.streams import place_of


class Library(Protocol):
    """What this backend asks of NVSHMEM. Tensors are bytes of the own arena; `place` stands for the same place in
    another device's. All but `meet` on a stream that other lanes do not use; all is in a stream's order.

    `start`, `allocate`, `synchronize` and `stop` may never return where a device is gone, nor may `meet` where devices
    share a GPU. One thread of a process calls the four, and no other: CUDA's present device is each thread's own,
    `start` sets it there, and NVSHMEM wants to be ended by the thread that started it. Otherwise any thread may call
    NVSHMEM, one at a time (its level is SERIALIZED): the training loop waits for that thread meanwhile.
    """

    device: torch.device
    process: Process  # what others of this process have asked of NVSHMEM

    def room(self, nbytes: int) -> None:
        """Raise InputError where an arena of so many bytes cannot be had."""

    def start(self, group: dist.ProcessGroup | None, nbytes: int) -> None:
        """Have all devices know each other, with room for so many bytes in each heap."""

    def check_joined(self, rank: int, size: int) -> None:
        """Raise InputError where NVSHMEM has other devices after its start."""

    def allocate(self, nbytes: int) -> Tensor: ...

    def mapped(self, mine: Tensor, device: int) -> Tensor | None:
        """A peer's arena where it has an address here."""

    def get_nbi(self, into: Tensor, place: Tensor, device: int) -> None:
        """`quiet` says when it is there."""

    def put_nbi(self, place: Tensor, data: Tensor, device: int) -> None:
        """`quiet` and `meet` say when it is there, and `data` may be overwritten."""

    def quiet(self) -> None:
        """Wait for all that this device has asked for or sent."""

    def meet(self) -> None: ...

    def synchronize(self) -> None:
        """The host waits for all streams."""

    def stop(self, mine: Tensor | None) -> None:
        """Without an arena nothing of it is done together: it returns at once, on any thread."""


class NvshmemMemory(FarMemory):
    def __init__(self, host: Host, library: Library) -> None:
        self.host, self.library = host, library
        self.rank, self.size, self.place = host.rank, host.size, place_of(library.device)
        self.timeout = host.timeout
        self._mine: Tensor | None = None
        self._links: GpuLinks | None = None
        self._views: list[Tensor] = []
        self._near = range(self.rank, self.rank + 1)
        self._aside = PROCESS.enter()
        self._ended = False  # this device or another: nothing more can be done by all together

    @property
    def near(self) -> range:
        return self._near

    def allocate(self, nbytes: int) -> None:
        check_devices(self.host.group, self.library.process, self.library.device.index)
        check_sizes(self.host.group, nbytes, self.library.room)
        self._bounded(lambda: self.library.start(self.host.group, nbytes), "NVSHMEM's start")
        with self._noted():
            self.host.meet(MAIN)  # nobody asks for memory before all have started: who is gone by then is named here
        agreed(self.host.group, lambda: self.library.check_joined(self.rank, self.size))
        self._mine = mine = self._bounded(lambda: self.library.allocate(nbytes), "NVSHMEM's memory")
        with self._noted():
            self.host.meet(MAIN)  # ... and who got none here
        every = range(self.size)
        mapped = agreed(
            self.host.group, lambda: [mine if d == self.rank else self.library.mapped(mine, d) for d in every]
        )
        self._near = _run_around(self.rank, [one is not None for one in mapped])
        self._views = [one for d, one in enumerate(mapped) if one is not None and d in self._near]
        told = [self._near] * self.size
        dist.all_gather_object(told, self._near, group=self.host.group)
        self.every_near = tuple(told)
        self._links = asked(self.host.group, self.library.device)
        self.meet(MAIN)

    @property
    def why_not_add(self) -> str:
        """Of near devices: to others nobody adds by addresses."""
        return "" if self._links is None else self._links.why_not_add(self.every_near)

    def elsewhere(self, device: int) -> bool:
        return self._links is not None and self._links.elsewhere(self.rank, device)

    def view(self, device: int) -> Tensor:
        return self._views[device - self._near.start]

    def fetch(self, device: int, start: int, into: Tensor) -> None:
        self.fetch_all([(device, start, into)])

    def fetch_all(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        """All are on their way before one is waited for."""
        for device, start, into in places:
            self.library.get_nbi(into, self._place(start, into), device)
        if places:
            self.library.quiet()

    def send(self, device: int, start: int, data: Tensor) -> None:
        self.send_all([(device, start, data)])

    def send_all(self, places: Sequence[tuple[int, int, Tensor]]) -> None:
        """None is waited for: a put that waits on a stream waits for all that its device has under way."""
        for device, start, data in places:
            self.library.put_nbi(self._place(start, data), data, device)

    def _place(self, start: int, alike: Tensor) -> Tensor:
        return self.view(self.rank)[start : start + alike.numel()]

    def arrive(self) -> None:
        self.library.quiet()

    def meet(self, room: int) -> None:
        """In MAIN the host waits, for its own streams first. In other rooms the present stream does."""
        if room != MAIN:
            self.library.meet()
            return
        self._finish()
        with self._noted():
            self.host.meet(MAIN)
        if not self.all_near:
            self._bounded(self._meet_far, "NVSHMEM's meeting")

    def _meet_far(self) -> None:
        self.library.meet()
        self.library.synchronize()

    def _finish(self) -> None:
        self._bounded(self.library.synchronize, "its streams")

    def _bounded(self, call: Callable[[], Result], what: str) -> Result:
        with self._noted():
            return self._aside.bounded(call, self.host, what)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._ended = True
            PROCESS.give_up(self._aside)
            raise

    def take(self) -> int:
        """The count is the hosts'. A device is free when it has computed, not when its work lies on its streams."""
        self._finish()
        with self._noted():
            return self.host.take()

    def refill(self) -> None:
        self.host.refill()

    def leave(self) -> bool:
        if not self._ended:  # else its streams may wait for who is gone
            self._finish()
        with self._noted():
            return self.host.leave()

    def stopped(self) -> list[int]:
        return self.host.stopped()

    def silent(self, devices: list[int], what: str) -> PeerLost:
        return self.host.silent(devices, what)

    def check(self) -> None:
        with self._noted():
            self.host.check()

    def fail(self, error: BaseException) -> None:
        self._ended = True
        self.host.fail(error)

    def close(self) -> None:
        """Freeing is a meeting of all, which nobody enters before all have left. Maps of peers' memory go first."""
        mine, self._mine = self._mine, None
        self._views.clear()
        if not self._ended and mine is None:
            self.library.stop(None)
        elif not self._ended and self.leave():
            self._bounded(lambda: self.library.stop(mine), "NVSHMEM's end")
        PROCESS.leave(self._aside)
        self.host.close()


def _run_around(rank: int, mapped: list[bool]) -> range:
    """The unbroken run of devices around this one that it has addresses of: kernels take a range."""
    start, stop = rank, rank + 1
    while start > 0 and mapped[start - 1]:
        start -= 1
    while stop < len(mapped) and mapped[stop]:
        stop += 1
    return range(start, stop)
