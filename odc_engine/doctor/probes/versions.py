"""Driver, GPU, packages, and whether MPS could be used."""

import importlib.metadata
import os
import shutil
import subprocess
import sysconfig
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from odc_engine.doctor.probes.base import OK, Answer
from odc_engine.doctor.probes.driver import first_gpu
from odc_engine.places import mps

PACKAGES = (
    "torch",
    "triton",
    "cuda-bindings",
    "cuda-core",
    "nvshmem4py-cu13",
    "nvidia-nvshmem-cu13",
    "nvidia-nccl-cu13",
)
QUERY = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,compute_mode,mig.mode.current"


def probe() -> Answer:
    gpu = first_gpu()
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    program = shutil.which(mps.PROGRAM)
    running = mps.up(os.environ)
    data: dict[str, Any] = {"gpu": asdict(gpu), "packages": versions, "smi": _smi(), "lacks": (lacks := _lacks())}
    data |= {"mps": program, "mps_running": running}
    served = ".".join(map(str, gpu.driver))
    found = (
        f"{gpu.count} x {gpu.name}, {gpu.sms} SMs, sm_{gpu.capability[0]}{gpu.capability[1]}, driver for CUDA {served}"
    )
    missing = [name for name, version in versions.items() if version is None]
    found += f"; MPS {'running' if running else 'there' if program else 'absent'}"
    found += f"; Triton needs {' and '.join(lacks)}" if lacks else ""
    return Answer(OK, found + (f"; not installed: {', '.join(missing)}" if missing else ""), data)


def _lacks() -> list[str]:
    """What is missing of the two things with which Triton compiles its way into the driver, once on each machine."""
    told = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_paths("posix_prefix")["include"], "Python.h")
    return ([] if told else ["a C compiler"]) + ([] if header.exists() else [str(header)])


def _smi() -> str | None:
    """Settings as they are found, the clocks above all: rates mean little without them."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return None
