"""Processes of one machine or many: ranks of one machine share arenas, and reach those of others over TCP."""

from typing import TYPE_CHECKING

from odc_engine.backends.backend import Processes, Use
from odc_engine.started import started

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Host, PeerMemory


class _Tcp(Processes):
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "PeerMemory":  # noqa: ARG002
        from odc_engine.backends.network import Network
        from odc_engine.backends.shm.memory import SharedMemory
        from odc_engine.backends.tcp.memory import TcpMemory

        if isinstance(host, SharedMemory):  # all are on one machine
            return host
        assert isinstance(host, Network)
        return TcpMemory(host)

    def needs(self, use: Use) -> None:
        place = started()
        if place is not None and not place.one_machine:
            use.refuse_sums_afar()


ROW = _Tcp(
    name="tcp",
    says="processes on one machine or many, every sync; arenas in {arenas}, and over TCP beyond",
    across=True,
)
