"""Threads of one process, on the machine's CPU or each on SMs of its GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odc_engine.backends import backend
from odc_engine.backends.backend import BOTH, Use
from odc_engine.started import started
from odcsim.errors import InputError

if TYPE_CHECKING:
    from odc_engine.places.place import Place


class _ThreadsHere(backend.Threads):
    def needs(self, use: Use) -> None:  # noqa: ARG002
        refuse_started()

    def places(self, use: Use) -> Sequence["Place"]:
        from odc_engine.places.place import HOST

        return [HOST] * use.devices


class _OnGpu(_ThreadsHere):
    def needs(self, use: Use) -> None:
        super().needs(use)
        if use.recipe.ahead:
            fix = "use --backend cuda_ipc, or --sharding hybrid"
            raise InputError("devices that share a GPU have no stream between nodes", fix=fix)
        self.check_timed(use.devices)

    def check_timed(self, devices: int) -> None:  # noqa: ARG002
        from odc_engine.places import green

        green.refuse_without()

    def places(self, use: Use) -> Sequence["Place"]:
        import torch

        from odc_engine.places import green, products
        from odc_engine.places.streams import StreamPlace

        parts = green.partitions(use.devices, self._sms(use))
        products.plan_for(parts[0].sms, green.every())
        return [StreamPlace(torch.device("cuda", 0), part.streams, part) for part in parts]

    def part(self, devices: int) -> str:
        from odc_engine.places import green

        return str(green.share(devices))

    def hardware(self, use: Use) -> str:
        from odc_engine.places import green

        return green.told(self._sms(use))

    def _sms(self, use: Use) -> int:
        return int(use.part or self.part(use.devices))


def refuse_started() -> None:
    """One process runs all devices, so a launcher's would be as many runs."""
    if (place := started()) is not None:
        raise InputError(
            f"backend threads runs all devices in one process and {place.by} starts one for each",
            fix=f"start it without {place.by}, or use --backend shm",
        )


CPU = _ThreadsHere(name="threads", says="one process, a thread per device, every sync", profiled=BOTH)
# Small microbatches take as long as Python takes to give their kernels, one device after the other.
CUDA = _OnGpu(
    name="threads", device="cuda", help="threads make devices of one GPU's SMs", profiled=BOTH, least_timed=2000
)
