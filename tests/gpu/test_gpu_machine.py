"""What the machine is on which the other tests run."""

import importlib.metadata
import os
import platform
import shutil

import pytest
from own_process import smi

from odc_engine.places import mps

pytestmark = [pytest.mark.gpu, pytest.mark.limit(20)]
PACKAGES = "odcsim torch triton numpy cuda-bindings cuda-core nvshmem4py-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13"
SETTINGS = "name,driver_version,memory.total,clocks.max.sm,power.limit,compute_mode,mig.mode.current"


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def test_what_is_here(device, note):
    """What is installed: driver, GPU, packages, MPS."""
    note(packages={name: version(name) for name in PACKAGES.split()}, python=platform.python_version())
    note(kernel=platform.release(), cores=len(os.sched_getaffinity(0)), mps_running=mps.up(os.environ))
    note(tools={name: shutil.which(name) for name in ("nvidia-smi", "nvcc", "ncu", "gcc", "compute-sanitizer")})
    if device == "cuda":
        import torch

        found = torch.cuda.get_device_properties(0)
        note(gpu=found.name, sms=found.multi_processor_count, capability=f"sm_{found.major}{found.minor}")
        note(gpus=torch.cuda.device_count(), cuda=torch.version.cuda, settings=smi(SETTINGS))
