"""Threads of one process on the machine's CPU, or one on streams of its GPU."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odc_engine.backends import backend
from odc_engine.backends.backend import BOTH, Use
from odc_engine.places.queues import queues
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
        from odc_engine.backends import gpus

        super().needs(use)
        if use.devices > 1:
            fix = "use one device, or --backend cuda_ipc, with a process for each"
            raise InputError(f"{use.devices} threads on streams of one GPU take its SMs from each other", fix=fix)
        os.environ.update(queues(os.environ))  # what follows is this process's first call of CUDA
        gpus.refuse_without_gpus(self.name)

    def places(self, use: Use) -> Sequence["Place"]:  # noqa: ARG002
        """With streams to compute, gather and push. Lower goes first: a transfer's few programs start before the next
        matrix product's many, as on FSDP2's streams for transfers."""
        import torch

        from odc_engine.places.streams import StreamPlace

        stream: Any = torch.cuda.Stream  # torch has no types for it
        gpu = torch.device("cuda", 0)
        return [StreamPlace(gpu, [stream(gpu, priority=priority) for priority in (0, -1, -1)])]

    def hardware(self, use: Use) -> str:  # noqa: ARG002
        import torch

        return torch.cuda.get_device_name()


def refuse_started() -> None:
    """One process runs all devices, so a launcher's would be as many runs."""
    if (place := started()) is not None:
        raise InputError(
            f"backend threads runs all devices in one process and {place.by} starts one for each",
            fix=f"start it without {place.by}, or use --backend shm",
        )


CPU = _ThreadsHere(name="threads", says="one process, a thread per device, every sync", profiled=BOTH)
CUDA = _OnGpu(name="threads", device="cuda", help="threads: one device, on streams of a GPU")
