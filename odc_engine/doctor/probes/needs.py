"""What probes need before they can be asked, each looked for by what is least: a driver before torch, torch before a
library. Absent, with the way out, where it is not there."""

import os
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from odc_engine.doctor.probes.base import CPU, Absent, Probe
from odc_engine.doctor.probes.driver import first_gpu, need, need_torch
from odc_engine.errors import FOR_ENGINE, FOR_GPUS

SANITIZER = "compute-sanitizer"


def look(probe: Probe, device: str) -> None:
    """Raise on the first that is missing. A CPU that stands in for a GPU needs less."""
    if device == CPU and not probe.stands_in:
        raise Absent("no GPU: a CPU cannot stand in for it here")
    for name in probe.needs:
        if device != CPU:
            NEEDS[name]()
        elif name in STANDING_IN:
            STANDING_IN[name]()


def sanitizer() -> str:
    """NVIDIA's checker of kernels' accesses, which lies beside the compiler where it is not on the path."""
    beside = Path("/usr/local/cuda/bin", SANITIZER)
    if program := shutil.which(SANITIZER) or (str(beside) if beside.exists() else None):
        return program
    raise Absent(f"{SANITIZER} is not installed; it comes with CUDA's compiler")


def _several() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        raise Absent("processes that share a GPU take turns on it, and here is one")


def _interpreter() -> None:
    """Triton on a CPU."""
    need("triton", FOR_GPUS)
    triton, numpy = (tuple(int(part) for part in version(name).split(".")[:2]) for name in ("triton", "numpy"))
    if triton < (3, 7) and numpy >= (2, 4):
        raise Absent(f"Triton {version('triton')} does not interpret kernels under numpy {version('numpy')}")
    os.environ["TRITON_INTERPRET"] = "1"


NEEDS: dict[str, Callable[[], object]] = {
    "a GPU": first_gpu,
    "torch": need_torch,
    "Triton": lambda: need("triton", FOR_GPUS),
    "kernels": lambda: need("triton", FOR_GPUS),
    "nvshmem4py": lambda: need("nvshmem.core", FOR_GPUS),
    "compute-sanitizer": sanitizer,
    "several GPUs": _several,
}
STANDING_IN: dict[str, Callable[[], object]] = {"torch": lambda: need("torch", FOR_ENGINE), "kernels": _interpreter}
