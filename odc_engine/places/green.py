"""Divide one GPU into several devices: disjoint groups of its SMs (green contexts), each with its own streams.

All groups come from one split. torch.cuda.green_contexts splits the whole GPU again for each context and returns the
first group each time, so that contexts made that way share their SMs. Not divided: memory bandwidth, the L2 cache and
the copy engines.
"""

import importlib.util
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from odc_engine.errors import FOR_GPUS
from odc_engine.places.queues import queues
from odcsim.errors import InputError

PIECE = 8  # SMs that a group is a multiple of, on GPUs of compute capability 9
# Of a group's streams: compute, gathers, pushes. Lower goes first: a transfer's few programs start before the next
# matrix product's many, as on FSDP2's streams for transfers.
PRIORITIES = (0, -1, -1)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """One group of SMs. `context` must live as long as its streams are used."""

    sms: int
    streams: tuple[torch.cuda.Stream, ...]
    context: Any

    @property
    def stream(self) -> torch.cuda.Stream:
        return self.streams[0]


def share(devices: int, gpu: int = 0) -> int:
    """Return the SMs of each device in so many equal groups."""
    if (own := every(gpu) // devices // PIECE * PIECE) == 0:
        raise InputError(f"{devices} devices on {every(gpu)} SMs", fix=f"use at most {every(gpu) // PIECE} devices")
    return own


def every(gpu: int = 0) -> int:
    """Return the SMs of the whole GPU."""
    return int(torch.cuda.get_device_properties(gpu).multi_processor_count)


def told(sms: int, gpu: int = 0) -> str:
    """Describe one device."""
    every = torch.cuda.get_device_properties(gpu)
    return f"{sms} of {every.multi_processor_count} SMs of {every.name} for each device"


def refuse_without() -> None:
    """Raise an error of one line before anything starts: this is the process's first call of CUDA."""
    os.environ.update(queues(os.environ))
    if not torch.cuda.is_available():
        raise InputError(
            f"--device cuda needs NVIDIA GPUs, and torch {torch.__version__} sees none",
            fix="use --device cpu, or see 'odc_engine doctor --gpu-selftest'",
        )
    # `cuda` is there with others of its packages, too, and has to be for the next question.
    for module, name in (("triton", "Triton"), ("cuda", "cuda-bindings"), ("cuda.bindings", "cuda-bindings")):
        if importlib.util.find_spec(module) is None:
            raise InputError(
                f"--device cuda needs {name}, which is not installed",
                fix=FOR_GPUS,
            )


@cache  # contexts last as long as the process: a profile runs the engine many times
def partitions(count: int, sms: int, gpu: int = 0) -> tuple[Partition, ...]:
    """Return so many groups of so many SMs each, or of more if the GPU divides into larger pieces only (8 on an
    H100)."""
    from cuda.bindings import driver

    torch.zeros(1, device=f"cuda:{gpu}")  # the context of the GPU itself has to be there first
    device = _checked(driver.cuDeviceGet(gpu))
    every = _checked(driver.cuDeviceGetDevResource(device, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups, made, _ = _checked(driver.cuDevSmResourceSplitByCount(count, every, 0, sms))
    if made < count:
        raise InputError(
            f"{count} groups of {sms} SMs do not fit into {every.sm.smCount} SMs", fix=f"use at most {made} devices"
        )
    return tuple(_partition(driver, device, group, gpu) for group in groups[:count])


def _partition(driver: Any, device: Any, group: Any, gpu: int) -> Partition:
    description = _checked(driver.cuDevResourceGenerateDesc([group], 1))
    default = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = _checked(driver.cuGreenCtxCreate(description, device, default))
    own = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    made = [_checked(driver.cuGreenCtxStreamCreate(context, own, priority)) for priority in PRIORITIES]
    external: Any = torch.cuda.ExternalStream  # torch has no types for it
    streams = tuple(external(int(stream), device=f"cuda:{gpu}") for stream in made)
    return Partition(int(group.sm.smCount), streams, context)


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return the results of a driver call, or raise its error."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"the driver answers {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
