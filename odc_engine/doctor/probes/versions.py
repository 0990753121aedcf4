"""Driver, GPU, packages, and whether MPS could be used."""

import importlib.metadata
import os
import platform
import shutil
import sysconfig
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from odc_engine.doctor.probes import machine
from odc_engine.doctor.probes.base import OK, Absent, Answer, Hearing
from odc_engine.doctor.probes.driver import first_gpu
from odc_engine.doctor.probes.needs import sanitizer
from odc_engine.places import mps

PACKAGES = (
    "odcsim",
    "torch",
    "triton",
    "numpy",
    "cuda-bindings",
    "cuda-core",
    "nvshmem4py-cu13",
    "nvidia-nvshmem-cu13",
    "nvidia-nccl-cu13",
)
QUERY = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,power.limit,compute_mode,mig.mode.current"


def probe(hearing: Hearing) -> Answer:
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    gpu = None if hearing.stands_in else first_gpu()
    program, running, lacks = shutil.which(mps.PROGRAM), mps.up(os.environ), _lacks()
    data: dict[str, Any] = {"gpu": asdict(gpu) if gpu else None, "packages": versions, "lacks": lacks}
    data |= {"mps": program, "mps_running": running, "tools": _tools(), "host": _host()}
    hearing.note(**data)
    data["smi"] = machine.smi(QUERY) if gpu else None
    found = f"no GPU: {platform.processor() or platform.machine()} stands in"
    if gpu:
        served, (major, minor) = ".".join(map(str, gpu.driver)), gpu.capability
        found = f"{gpu.count} x {gpu.name}, {gpu.sms} SMs, sm_{major}{minor}, driver for CUDA {served}"
        found += f"; MPS {'running' if running else 'there' if program else 'absent'}"
    missing = [name for name, version in versions.items() if version is None]
    found += f"; Triton needs {' and '.join(lacks)}" if lacks else ""
    return Answer(OK, found + (f"; not installed: {', '.join(missing)}" if missing else ""), data)


def _host() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"python": platform.python_version(), "kernel": platform.release(), "cores": cores, "memory": memory}


def _tools() -> dict[str, str | None]:
    """Programs that probes or people use, where they are."""
    found = {name: shutil.which(name) for name in ("nvidia-smi", "nvcc", "ncu", "gcc")}
    try:
        return found | {"compute-sanitizer": sanitizer()}
    except Absent:
        return found | {"compute-sanitizer": None}


def _lacks() -> list[str]:
    """What is missing of the two things with which Triton compiles its way into the driver, once on each machine."""
    told = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_paths("posix_prefix")["include"], "Python.h")
    return ([] if told else ["a C compiler"]) + ([] if header.exists() else [str(header)])
