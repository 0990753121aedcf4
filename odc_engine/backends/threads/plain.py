"""Threads on streams that share all SMs of a GPU: what takes least of a driver, and a device that has it whole. No
choice of a command: streams that compute at once take SMs from each other, so that times of several mean nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odc_engine.backends import backend
from odc_engine.backends.backend import Use

if TYPE_CHECKING:
    from odc_engine.places.place import Place


class _Plain(backend.Threads):
    def places(self, use: Use) -> Sequence["Place"]:
        import torch

        from odc_engine.places.green import PRIORITIES
        from odc_engine.places.streams import StreamPlace

        stream: Any = torch.cuda.Stream  # torch has no types for it
        gpu = torch.device("cuda", 0)
        return [
            StreamPlace(gpu, [stream(gpu, priority=priority) for priority in PRIORITIES]) for _ in range(use.devices)
        ]

    def hardware(self, use: Use) -> str:  # noqa: ARG002
        import torch

        return f"all SMs of {torch.cuda.get_device_name()}"


PLAIN = _Plain(name="threads", device="cuda")
