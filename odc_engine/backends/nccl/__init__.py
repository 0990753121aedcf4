"""FSDP2's own collectives over NCCL, one GPU per process, on one machine or several."""

from typing import TYPE_CHECKING

from odc_engine.backends.backend import COLLECTIVES, Use
from odc_engine.backends.gpu_row import GpuProcesses

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Collectives, Host


POLICY, NO_SM = "NCCL_CTA_POLICY", "2"


class _Nccl(GpuProcesses):
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "Collectives":
        from odc_engine.backends import gpus
        from odc_engine.backends.nccl import device as collectives

        return collectives.NcclDevice(host, gpus.own(host, device))

    def env(self, use: Use) -> dict[str, str]:
        """NCCL gathers by copy engines where it may use no SM, and buffers are registered."""
        return super().env(use) | ({POLICY: NO_SM} if use.recipe.copies == "engines" else {})

    def needs(self, use: Use) -> None:
        from odc_engine.backends import gpus

        gpus.refuse_without_nccl(use.devices)
        if use.emulate:
            gpus.refuse_without("torch with --emulate-compute", "triton", "Triton")

    def check_timed(self, devices: int) -> None:
        from odc_engine.backends import gpus

        gpus.refuse_without_nccl(devices)
        gpus.refuse_without("torch with emulated compute", "triton", "Triton")

    def lacks(self) -> str:
        try:
            import torch.distributed as dist
        except ImportError:
            return "a torch with NCCL"
        return "" if dist.is_nccl_available() else "a torch with NCCL"


ROW = _Nccl(
    name="torch",
    device="cuda",
    says="a process per GPU, the same over NCCL; one machine or many",
    help="torch has a GPU for each and NCCL",
    syncs=COLLECTIVES,
    shardings=("full",),
    profiled=COLLECTIVES[:1],
    across=True,
    library="nccl",
)
