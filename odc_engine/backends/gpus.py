"""Checks that every backend for GPUs makes before it begins."""

import importlib.util
from collections.abc import Callable

import torch
import torch.distributed as dist

from odc_engine.backends.base import Host
from odc_engine.backends.collectives import agreed
from odc_engine.errors import FOR_GPUS
from odc_engine.places import mps
from odc_engine.started import started
from odcsim.errors import InputError


def own(host: Host, device: torch.device | None = None) -> int:
    """The number of a device's GPU among those that its process sees: where its parameters are. Without any it is a
    process of the engine's own, which has the GPU of its rank on this machine."""
    if device is not None and device.index is not None:
        return device.index
    place = started()
    return place.local_rank if place else host.rank


def refuse_without_gpus(backend: str) -> None:
    """Raise an error of one line before anything starts if there is no GPU."""
    if not torch.cuda.is_available():
        raise InputError(
            f"backend {backend} needs NVIDIA GPUs, and torch {torch.__version__} sees none",
            fix="use --backend shm, or see 'odc_engine doctor --gpu-selftest'",
        )
    refuse_without(backend, "triton", "Triton")


def refuse_without_nccl(devices: int) -> None:
    """`devices` of this machine. Where the launcher shows each process a GPU of its own, it sees that one alone."""
    if not torch.cuda.is_available():
        raise InputError(
            f"NCCL needs NVIDIA GPUs, and torch {torch.__version__} sees none",
            fix="use --device cpu, or see 'odc_engine doctor --gpu-selftest'",
        )
    if not dist.is_nccl_available():
        raise InputError(f"torch {torch.__version__} has no NCCL", fix="install torch with CUDA, or use other backends")
    count = torch.cuda.device_count()
    if devices > count and not (started() and count == 1):
        fix = f"at most {count} devices, or --backend cuda_ipc, whose processes may share a GPU"
        raise InputError(f"{devices} devices on {count} GPUs, and NCCL refuses two on one", fix=fix)


def refuse_without(backend: str, module: str, name: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise InputError(f"backend {backend} needs {name}, which is not installed", fix=FOR_GPUS)


def check_own(devices: int) -> None:
    """Refuse to time ranks of this machine that would take turns on a GPU. With a share each, by MPS, they do not."""
    refuse_without_gpus("cuda_ipc")
    if devices <= (count := torch.cuda.device_count()) or mps.apart(part := mps.share(devices, count), devices, count):
        return
    if part:
        raise InputError(
            f"{devices} devices on {count} GPUs with {part} % of one each overlap, so that their times mean nothing",
            fix=f"at most {100 * count} devices, with {mps.SHARE} unset",
        )
    raise InputError(
        f"{devices} devices on {count} GPUs take turns, so that their times mean nothing",
        fix=f"at most --devices {count}, or start MPS ({mps.START}), which gives each a share",
    )


def told(devices: int) -> str:
    """Describe the hardware of so many ranks on this machine."""
    count = torch.cuda.device_count()
    names = ", ".join(sorted({torch.cuda.get_device_name(gpu) for gpu in range(count)}))
    if part := mps.share(devices, count):
        return f"{devices} processes on {count} x {names}, with {part} % of one each by MPS"
    return f"{devices} x {names}" if devices <= count else f"{devices} processes that take turns on {count} x {names}"


def check_sizes(group: dist.ProcessGroup | None, nbytes: int, room: Callable[[int], None]) -> None:
    """All devices ask for as many bytes, and `room` raises on none."""
    told = [0] * dist.get_world_size(group)
    dist.all_gather_object(told, nbytes, group=group)
    if any(its != nbytes for its in told):
        raise InputError(f"devices share {', '.join(map(str, told))} bytes", fix="make the same model on every device")
    agreed(group, lambda: room(nbytes))


def check_room(nbytes: int, device: torch.device) -> None:
    """What torch's allocator keeps without a user is given back before it is taken for lacking."""
    free, _ = torch.cuda.mem_get_info(device)
    if nbytes > free:
        with torch.cuda.device(device):
            torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
    if nbytes > free:
        raise InputError(
            f"an arena of {nbytes / 1e9:.1f} GB does not fit into the GPU's {free / 1e9:.1f} GB that are free",
            fix="use more devices, a smaller model, or --accumulate locked",
        )
