"""NVIDIA MPS, with which processes compute on one GPU at the same time: whether it is up, and which share each process
gets.

The daemon belongs to the user: nothing here starts, ends or changes one.
"""

import os
from collections.abc import Mapping
from pathlib import Path

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # of a GPU's SMs that a process may use; read when it first touches CUDA
PROGRAM = "nvidia-cuda-mps-control"
START, END = f"{PROGRAM} -d", f"echo quit | {PROGRAM}"


def control(env: Mapping[str, str]) -> Path:
    """Return the daemon's control pipe."""
    return Path(env.get(PIPES) or "/tmp/nvidia-mps") / "control"


def up(env: Mapping[str, str]) -> bool:
    return control(env).exists()


def share(devices: int, gpus: int, env: Mapping[str, str] | None = None) -> str:
    """Return the percentage of a GPU for each of so many processes of this machine: the user's setting, else an
    equal part of the fullest GPU. Empty without a limit."""
    env = os.environ if env is None else env
    if not up(env):
        return ""
    if told := env.get(SHARE, ""):
        return told
    return str(max(1, 100 // -(-devices // gpus))) if devices > gpus > 0 else ""


def percent(text: str) -> float | None:
    """Parse a percentage; None if it is not one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 100 else None


def apart(part: str, devices: int, gpus: int) -> bool:
    """Whether the processes of the fullest GPU get at most all of it together."""
    value = percent(part)
    return value is not None and value * -(-devices // gpus) <= 100
