"""What suits a backend, and where a model's parameters are: a CPU, a GPU, or a group of a GPU's SMs."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from odc_engine.backends.base import FarMemory, PeerMemory
from odc_engine.backends.cuda_ipc.memory import CudaMemory
from odc_engine.backends.nccl.device import NcclDevice
from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.memory import Host, NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.decoder.marks import wait
from odc_engine.memory.arena import Arena, UnitShape
from odc_engine.memory.far import FarArena
from odc_engine.places import green
from odc_engine.places.lanes import Lane
from odc_engine.places.place import HOST, Place
from odc_engine.places.streams import StreamClock, StreamLane, StreamPlace, pause
from odc_engine.record import Clock
from odc_engine.started import started


def memory_for(model: nn.Module, timeout: float) -> PeerMemory:
    """Arenas where the parameters are."""
    host = SharedMemory(timeout=timeout)
    return CudaMemory(host) if any(p.is_cuda for p in model.parameters()) else host


def memory_on(backend: str, device: str, host: Host) -> PeerMemory | NcclDevice:
    """Where a backend's arenas lie, or what stands there for one that has none. `host`: the same devices as
    processes."""
    place = started()
    gpu = place.local_rank if place else host.rank
    if backend == "nvshmem":
        return NvshmemMemory(host, nvshmem_library.Nvshmem(gpu))
    if backend == "torch" and device == "cuda":
        return NcclDevice(host, gpu)
    assert isinstance(host, SharedMemory)  # the others run on one machine
    return CudaMemory(host) if backend == "cuda_ipc" else host


def arena_on(memory: PeerMemory, units: Sequence[UnitShape], accumulate: str, per_node: int | None) -> Arena:
    """Moved by kernels on a GPU, by torch on a CPU, and through a library where no address reaches."""
    if memory.device.type != "cuda":
        if isinstance(memory, FarMemory):
            return FarArena(memory, units, accumulate, per_node)
        return Arena(memory, units, accumulate, per_node)
    from odc_engine.memory.gpu import FarGpuArena, GpuArena

    if isinstance(memory, FarMemory):
        return FarGpuArena(memory, units, accumulate, per_node)
    return GpuArena(memory, units, accumulate, per_node)


def lane_on(device: torch.device, name: str) -> Lane:
    """Streams on a GPU, a thread on a CPU."""
    return StreamLane(device) if device.type == "cuda" else Lane(name)


def clock_on(device: torch.device) -> Clock:
    """Marks on streams on a GPU, the machine's clock on a CPU."""
    return StreamClock() if device.type == "cuda" else Clock()


def pause_on(device: torch.device) -> Callable[[float], None]:
    """What lets time pass instead of computing: a kernel on a GPU, sleep on a CPU."""
    return pause if device.type == "cuda" else wait


def places(device: str, count: int, sms: int = 0) -> list[Place]:
    """Where so many threads work: on this machine's CPU, or each on so many SMs of its GPU (equal shares of all)."""
    if device == "cpu":
        return [HOST] * count
    parts = green.partitions(count, sms or green.share(count))
    return [StreamPlace(torch.device("cuda", 0), part.streams, part) for part in parts]
