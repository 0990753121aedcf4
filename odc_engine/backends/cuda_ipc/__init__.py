"""GPUs of one node, one process each, that map each other's memory."""

from typing import TYPE_CHECKING

from odc_engine.backends import nccl
from odc_engine.backends.backend import BOTH, Use
from odc_engine.backends.gpu_row import GpuProcesses

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Host, PeerMemory


class _CudaIpc(GpuProcesses):
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "PeerMemory":
        from odc_engine.backends.collectives import agreed
        from odc_engine.backends.cuda_ipc.memory import CudaMemory
        from odc_engine.backends.shm.memory import SharedMemory

        assert isinstance(host, SharedMemory)  # it runs on one machine
        return CudaMemory(host, agreed(host.group, lambda: self._checked(host, device)))

    def _checked(self, host: "Host", device: "torch.device | None") -> "torch.device":
        from odc_engine.backends import gpus

        gpus.refuse_without_gpus(self.name)
        return self.gpu(host, device)

    def needs(self, use: Use) -> None:  # noqa: ARG002
        from odc_engine.backends import gpus

        gpus.refuse_without_gpus(self.name)

    def check_timed(self, devices: int) -> None:
        from odc_engine.backends import gpus

        gpus.check_own(devices)

    def part(self, devices: int) -> str:
        import torch

        from odc_engine.places import mps

        return mps.share(devices, torch.cuda.device_count())

    def env(self, use: Use) -> dict[str, str]:
        """Processes that share a GPU have parts of it under MPS. Other backends' refuse to share."""
        from odc_engine.places import mps

        part = use.part or self.part(use.devices)
        return super().env(use) | ({mps.SHARE: part} if part else {})


ROW = _CudaIpc(
    name="cuda_ipc",
    device="cuda",
    says="a process per GPU of one node, every sync",
    profiled=BOTH,
    rival=nccl.ROW,
    packages=("triton",),
)
