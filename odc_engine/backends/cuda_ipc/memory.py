"""GPUs of one node, a process for each: arenas in their memory that all of them map, and nothing that runs beside.

The training loops meet as processes of one machine do (shm), when their streams are done. Lanes that meet do so on
their streams. Several processes may share a GPU, for tests: they take turns then, so their times mean nothing,
unless MPS gives each a share.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.base import MAIN, ROOMS, PeerMemory
from odc_engine.backends.collectives import agreed
from odc_engine.backends.cuda_ipc.arenas import provided
from odc_engine.backends.gpus import check_room, check_sizes
from odc_engine.backends.links import asked
from odc_engine.backends.patience import LOOKS, did_not_come
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import PeerLost
from odc_engine.places.streams import WholeGpu

_FLAGS = 4096  # bytes behind the arena in which lanes meet: 32 bits of each device for each room


class CudaMemory(PeerMemory):
    """`host`: the same devices as processes, for meetings and to name who is gone. `device`: where the arena lies. What
    is present to the caller stays so."""

    def __init__(self, host: SharedMemory, device: torch.device) -> None:
        self.host, self.rank, self.size, self.timeout = host, host.rank, host.size, host.timeout
        self.place = agreed(host.group, lambda: WholeGpu(device))
        self._links = asked(host.group, device)
        self._links.refuse_torn()
        self._arenas: list[Tensor] = []
        self._keep: Any = None

    @property
    def why_not_add(self) -> str:
        return self._links.why_not_add()

    def elsewhere(self, device: int) -> bool:
        return self._links.elsewhere(self.rank, device)

    def allocate(self, nbytes: int) -> None:
        check_sizes(self.host.group, nbytes, lambda nbytes: check_room(nbytes, self.device))
        with torch.cuda.device(self.device):
            self._allocate(nbytes)
        self.meet(MAIN)

    def _allocate(self, nbytes: int) -> None:
        group = self.host.group or dist.group.WORLD
        assert group is not None
        self._arenas, self._keep = provided(nbytes + _FLAGS, group, self.device)
        self._came = [0] * ROOMS
        self._missing = torch.zeros(self.size, dtype=torch.int32, device=self.device)
        self._arenas[self.rank][nbytes:].zero_()
        from odc_engine.kernels import transfers

        table = transfers.table([arena.data_ptr() for arena in self._arenas], self.device)
        room = -(-4 * self.size // transfers.ALIGN) * transfers.ALIGN
        self._flags = [transfers.Shards(table, self.rank, nbytes + room * r, self.size) for r in range(ROOMS)]
        self._arenas = [arena[:nbytes] for arena in self._arenas]

    def view(self, device: int) -> Tensor:
        return self._arenas[device]

    def meet(self, room: int) -> None:
        """In MAIN the host waits, for its own streams first. In other rooms the present stream does."""
        if room == MAIN:
            self.place.finish()
            self._raise_missing()
            self.host.meet(MAIN)
            return
        from odc_engine.kernels import transfers

        self._came[room] += 1
        transfers.meet(self._flags[room], self._came[room], int(LOOKS * self.host.timeout), self._missing)

    def _raise_missing(self) -> None:
        if self._arenas and (missing := self._missing.nonzero().flatten().tolist()):
            raise self.host.peers.silent(missing, did_not_come(self.host.timeout))

    def check(self) -> None:
        self.host.check()

    def take(self) -> int:
        """The count is the hosts'. A device is free when it has computed, not when its work lies on its streams."""
        self.place.finish()
        return self.host.take()

    def refill(self) -> None:
        self.host.refill()

    def leave(self) -> bool:
        return self.host.leave()

    def stopped(self) -> list[int]:
        return self.host.stopped()

    def silent(self, devices: list[int], what: str) -> PeerLost:
        return self.host.silent(devices, what)

    def fail(self, error: BaseException) -> None:
        self.host.fail(error)

    def close(self) -> None:
        """Maps of peers' memory go first, the own arena with what keeps it."""
        self._arenas.clear()
        self._keep = None
        self.host.close()
