"""What the machine says around a probe: clocks as they are found, and what the kernel's log has on its GPUs."""

import ctypes
import functools
import os
import subprocess
from contextlib import suppress
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")
_CLOCKS = {"sm_mhz": 1, "memory_mhz": 2}  # NVML_CLOCK_...
_FIRST = 0  # GPU, and its sensor of temperature


def smi(query: str) -> str | None:
    """What nvidia-smi says of a GPU's settings, None where it says nothing."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return None


def clocks() -> dict[str, float]:
    """Of the first GPU: rates mean little without them. `held_back` has a bit for each reason why clocks are lower than
    they could be (NVML's clocks event reasons; 1: idle, 4: power, 32 and 64: heat)."""
    if (library := _nvml()) is None:
        return {}
    nvml, gpu = library
    asked = {name: ("nvmlDeviceGetClockInfo", (kind,)) for name, kind in _CLOCKS.items()}
    found = {name: _asked(nvml, call, gpu, *more) for name, (call, more) in asked.items()}
    found["celsius"] = _asked(nvml, "nvmlDeviceGetTemperature", gpu, _FIRST)
    power = _asked(nvml, "nvmlDeviceGetPowerUsage", gpu)
    found["watts"] = None if power is None else power / 1000
    found["held_back"] = _asked(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
    return {name: value for name, value in found.items() if value is not None}


@functools.cache  # and never given back: a GPU that nobody holds takes seconds to come up for whoever is next
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    gpu = ctypes.c_void_p()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(_FIRST, ctypes.byref(gpu)):
        return None
    return nvml, gpu


def _asked(nvml: ctypes.CDLL, call: str, gpu: ctypes.c_void_p, *more: int) -> float | None:
    value = ctypes.c_ulonglong()
    return None if getattr(nvml, call)(gpu, *more, ctypes.byref(value)) else value.value


def xids(log: Path = KERNEL_LOG) -> list[str] | None:
    """Lines of the kernel's log on a GPU's errors, None where it cannot be read."""
    try:
        file = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    text = b""
    try:
        while part := _next(file):
            text += part
    except OSError:  # no more for now, or not for us
        pass
    finally:
        os.close(file)
    return [line for line in text.decode(errors="replace").splitlines() if "Xid" in line]


def _next(file: int) -> bytes:
    """A record, or as much of a plain file."""
    while True:
        try:
            return os.read(file, 8192)
        except BrokenPipeError:  # it was overwritten before it was read
            continue
