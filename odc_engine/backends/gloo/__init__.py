"""FSDP2's own collectives over gloo."""

from typing import TYPE_CHECKING

from odc_engine.backends.backend import COLLECTIVES, Processes

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Collectives, Host


class _Gloo(Processes):
    def memory(self, host: "Host", device: "torch.device | None" = None) -> "Collectives":  # noqa: ARG002
        from odc_engine.backends.gloo.device import GlooDevice

        return GlooDevice(host)


ROW = _Gloo(
    name="torch",
    says="processes, FSDP2's own collectives over gloo; collective and deferred",
    syncs=COLLECTIVES,
    shardings=("full",),
    profiled=COLLECTIVES[:1],
    library="gloo",
)
