"""What rows of backends have alike whose devices are processes with a GPU. Loads no torch, as rows do not."""

import importlib.util
import os
from dataclasses import dataclass

from odc_engine.backends.backend import Processes, Use
from odc_engine.errors import FOR_GPUS
from odc_engine.places.queues import queues


@dataclass(frozen=True, slots=True)
class GpuProcesses(Processes):
    """`packages`: that it needs beside torch."""

    packages: tuple[str, ...] = ()

    def lacks(self) -> str:
        return "" if all(importlib.util.find_spec(package) for package in self.packages) else FOR_GPUS

    def env(self, use: Use) -> dict[str, str]:  # noqa: ARG002
        return queues(os.environ)

    def hardware(self, use: Use) -> str:
        from odc_engine.backends import gpus

        return gpus.told(use.devices)
