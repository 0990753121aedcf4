"""NVIDIA's driver, asked directly: whether there is a GPU is known before anything heavy is imported."""

import ctypes
import os
from dataclasses import dataclass

from odc_engine.doctor.probes.base import Absent
from odc_engine.errors import FOR_GPUS
from odc_engine.places.queues import queues

_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76  # CU_DEVICE_ATTRIBUTE_...
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    sms: int
    capability: tuple[int, int]
    driver: tuple[int, int]  # the CUDA version it serves
    count: int  # GPUs of this machine


def first_gpu() -> Gpu:
    """The GPU that probes use. Absent, with the reason, where there is none."""
    os.environ.update(queues(os.environ))  # cuInit reads it, and whatever runs in this process afterwards needs it
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Absent("no GPU: NVIDIA's driver (libcuda.so.1) is not installed") from None
    if code := cuda.cuInit(0):
        raise Absent("no GPU: the driver sees none" if code == _NO_DEVICE else f"the driver does not start ({code})")
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        raise Absent("no GPU: the driver sees none")
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, 0)
    sms, major, minor = (_attribute(cuda, number) for number in (_SM_COUNT, _MAJOR, _MINOR))
    served = (version.value // 1000, version.value % 1000 // 10)
    return Gpu(name.value.decode(), sms, (major, minor), served, count.value)


def _attribute(cuda: ctypes.CDLL, number: int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
    return value.value


def need(package: str, advice: str) -> None:
    """Absent, with the way to get it, where a package cannot be imported."""
    try:
        __import__(package)
    except ImportError as error:
        raise Absent(f"{package} cannot be imported ({str(error).splitlines()[0]}); {advice}") from None


def need_torch() -> Gpu:
    """A GPU, and a torch that can use it."""
    gpu = first_gpu()
    need("torch", FOR_GPUS)
    import torch

    if not torch.cuda.is_available():
        raise Absent(f"torch {torch.__version__} cannot use {gpu.name}; install a build for CUDA")
    torch.cuda.set_device(0)
    return gpu
