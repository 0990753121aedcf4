"""Processes of one machine that share memory: the default backend, and the one with which every other is compared."""

from typing import TYPE_CHECKING

from odc_engine.backends import gloo
from odc_engine.backends.backend import BOTH, Processes

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Host, PeerMemory


class _Shm(Processes):
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "PeerMemory":  # noqa: ARG002
        from odc_engine.backends.shm.memory import SharedMemory

        assert isinstance(host, SharedMemory)  # it runs on one machine
        return host


ROW = _Shm(name="shm", says="processes, every sync; arenas in {arenas}", profiled=BOTH, rival=gloo.ROW)
