"""What rows of backends have alike whose devices are processes with a GPU. Loads no torch, as rows do not."""

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odc_engine.backends.backend import Processes, Use
from odc_engine.errors import FOR_GPUS
from odc_engine.places.queues import queues

if TYPE_CHECKING:
    import torch

    from odc_engine.backends.base import Host


@dataclass(frozen=True, slots=True)
class GpuProcesses(Processes):
    """`packages`: that it needs beside torch."""

    packages: tuple[str, ...] = ()

    def lacks(self) -> str:
        return "" if all(importlib.util.find_spec(package) for package in self.packages) else FOR_GPUS

    def gpu(self, host: "Host", device: "torch.device | None") -> "torch.device":
        """Where a device's arena lies: with its parameters, and what is present to the caller stays so. A process of
        the engine's own has none yet: its own GPU is present to it from now on."""
        import torch

        from odc_engine.backends import gpus

        own = torch.device("cuda", gpus.own(host, device) % torch.cuda.device_count())
        if device is None:
            torch.cuda.set_device(own)
        return own

    def env(self, use: Use) -> dict[str, str]:  # noqa: ARG002
        return queues(os.environ)

    def hardware(self, use: Use) -> str:
        from odc_engine.backends import gpus

        return gpus.told(use.devices)
