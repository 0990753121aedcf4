"""A GPU of a process's own, whose collectives are NCCL's: FSDP2's, as they come. On one machine or several.

The training loops meet as processes do (shm, network). Nobody waits for NCCL alone: its kernels wait for a peer that is
gone without end. So another thread waits for them, while this one looks for who is gone, and gives up in time.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from odc_engine.backends.aside import Aside
from odc_engine.backends.base import MAIN, Collectives, Host
from odc_engine.errors import EngineError, PeerLost
from odc_engine.places.streams import place_of

# torch's watchdog ends a process and names nobody. It counts from when a collective was given, which may be long before
# it runs; so it is left what nothing else bounds: a host that is held up while it gives work.
WATCHDOG = timedelta(minutes=30)
ABORT = 2.0  # seconds to take down what a peer has left at work
_cuda: Any = torch.cuda  # torch has no types for most of it


class NcclDevice(Collectives):
    """`host`: the same devices as processes. `gpu`: of this machine's."""

    group: dist.ProcessGroup

    def __init__(self, host: Host, gpu: int) -> None:
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # else a lost peer ends this one, without a word
        self.host, self.rank, self.size = host, host.rank, host.size
        self.place = place_of(self._own(gpu))
        self._aside = Aside()
        host.meet(MAIN)  # who is gone by now is named here
        self.group = self._made()
        self._bounded(self._start, "NCCL's start")

    def _own(self, gpu: int) -> torch.device:
        device = torch.device("cuda", gpu % _cuda.device_count())
        _cuda.set_device(device)
        return device

    def _made(self) -> dist.ProcessGroup:
        """Beside the processes' own group, over which flags and meetings go."""
        group = dist.new_group(backend="nccl", timeout=WATCHDOG)
        assert isinstance(group, dist.ProcessGroup)
        return group

    def _start(self) -> None:
        """NCCL connects devices at the first collective."""
        _cuda.set_device(self.device)  # each thread has a present one of its own
        dist.all_reduce(torch.zeros(1, device=self.device), group=self.group)
        _cuda.synchronize(self.device)

    @property
    def mesh(self) -> DeviceMesh:
        return DeviceMesh.from_group(self.group, self.device.type)

    def finish(self) -> None:
        self._bounded(lambda: _cuda.synchronize(self.device), "its streams")

    def meet(self, room: int) -> None:
        self.finish()
        self.host.meet(room)

    def _bounded(self, call: Callable[[], None], what: str) -> None:
        with self._taken_down():
            self._aside.bounded(call, self.host, what)

    @contextmanager
    def _taken_down(self) -> Iterator[None]:
        """NCCL's kernels wait for a peer that is gone, and so would the end of this process."""
        try:
            yield
        except (PeerLost, dist.DistBackendError) as error:
            wait([Aside().call(self.group.abort)], ABORT)
            if isinstance(error, PeerLost):
                raise
            told = str(error).strip().splitlines()[-1]
            raise self.host.explain() or EngineError(f"NCCL fails: {told}") from None

    def close(self) -> None:
        """All devices come here right after a meeting."""
        self._bounded(lambda: dist.destroy_process_group(self.group), "NCCL's end")
        self._aside.end()
        self.host.close()
