"""NVSHMEM through nvshmem4py: which versions are there, starting it, and stopping it. Importing this imports neither.

NVSHMEM ends the process on many errors, so ask for a GPU before anything but starting. Its device library comes as
bitcode that is linked into kernels, and has to be of the version of the host's library.
"""

import importlib.metadata
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

WHEELS = ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12")
BOOTSTRAPPED = 1  # init_status: devices know each other; no GPU is set up


@dataclass(frozen=True, slots=True)
class Versions:
    python: str  # of nvshmem4py
    host: str
    bitcode: str  # of the wheel that the file belongs to, "" where it belongs to none
    path: str  # of the bitcode

    @property
    def agree(self) -> bool:
        return self.bitcode == self.host


def versions() -> Versions:
    """Of what would be used. ImportError, or what NVSHMEM's own search raises, where something is not there."""
    import nvshmem.core

    found = nvshmem.core.get_version()
    path = str(nvshmem.core.find_device_bitcode_library())
    return Versions(found.nvshmem4py_version, found.libnvshmem_version, _wheel_of(path), path)


def _wheel_of(path: str) -> str:
    for name in WHEELS:
        with suppress(importlib.metadata.PackageNotFoundError):
            wheel = importlib.metadata.distribution(name)
            if Path(path).is_relative_to(Path(str(wheel.locate_file("nvidia/nvshmem")))):
                return wheel.version
    return ""


def start(group: dist.ProcessGroup | None = None, gpu: int | None = None) -> None:
    """Have all devices of a group know each other. Without a GPU that is all that works afterwards."""
    import nvshmem.core

    device = None
    if gpu is not None:
        from cuda.core import Device

        device = Device(gpu)
        device.set_current()
    rank = dist.get_rank(group)
    told: list[Any] = [nvshmem.core.get_unique_id(empty=rank != 0)]
    dist.broadcast_object_list(told, group=group, group_src=0)
    nvshmem.core.init(
        device=device, uid=told[0], rank=rank, nranks=dist.get_world_size(group), initializer_method="uid"
    )


def stop() -> None:
    import nvshmem.core

    nvshmem.core.finalize()
