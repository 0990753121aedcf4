"""GPUs of one node or many, one process each, over NVSHMEM."""

from typing import TYPE_CHECKING

from odc_engine.backends.backend import Use
from odc_engine.backends.gpu_row import GpuProcesses
from odc_engine.started import started

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Host, PeerMemory


class _NvshmemGpus(GpuProcesses):
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "PeerMemory":
        from odc_engine.backends import gpus
        from odc_engine.backends.nvshmem import library
        from odc_engine.backends.nvshmem.memory import NvshmemMemory

        return NvshmemMemory(host, library.Nvshmem(gpus.own(host, device)))

    def needs(self, use: Use) -> None:
        from odc_engine.backends.nvshmem import library

        place = started()
        if place is not None and not place.one_machine:
            use.refuse_sums_afar()
        library.refuse_without_nvshmem()


ROW = _NvshmemGpus(
    name="nvshmem",
    device="cuda",
    says="a process per GPU of one node or many, every sync",
    across=True,
    packages=("triton", "nvshmem"),
)
