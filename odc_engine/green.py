"""One GPU as several devices: disjoint groups of its SMs (green contexts), each with a stream.

All groups come out of one split. torch.cuda.green_contexts splits the whole GPU anew for each context and hands out the
first group each time, so contexts made that way share their SMs. What is not split: memory's bandwidth, the L2 cache
and the copy engines.

Not run yet: no GPU was here.
"""

from dataclasses import dataclass
from typing import Any

import torch

from odcsim.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """`context` must live as long as the stream is used."""

    sms: int
    stream: torch.cuda.Stream
    context: Any


def partitions(count: int, sms: int, gpu: int = 0) -> tuple[Partition, ...]:
    """So many groups of so many SMs each, or more where the GPU gives them in larger pieces (8 on an H100)."""
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
    stream = _checked(driver.cuGreenCtxStreamCreate(context, own, 0))
    external: Any = torch.cuda.ExternalStream  # torch has no types for it
    return Partition(int(group.sm.smCount), external(int(stream), device=f"cuda:{gpu}"), context)


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver brings beside its status."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"the driver answers {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
