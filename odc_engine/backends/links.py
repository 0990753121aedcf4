"""Which GPU each device has, and what the links between those do. Every device asks the driver of its own way to each
other, and all are told all of it, so that all decide alike and refuse in the same words.

A GPU is known by its place on the bus and its uuid: each process counts those that it sees, and may see others than its
peers. Of one that it does not see its driver says nothing, and NVIDIA's management library is asked. What nobody says
is not taken for granted.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from odcsim.errors import InputError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

_READ, _WRITE, _ATOMICS = 0, 1, 3  # NVML_P2P_CAPS_INDEX_...
SLOTS = 'use --accumulate slots (of OnDemand: accumulate="slots")'


@dataclass(frozen=True, slots=True)
class PlacedGpu:
    """Empty where cuda-bindings are not there to ask. Slices of one GPU (MIG) have its bus, and uuids of their own."""

    bus: str = ""
    uuid: str = ""
    name: str = ""

    @property
    def known(self) -> bool:
        return bool(self.uuid)

    @property
    def is_slice(self) -> bool:
        return " MIG " in self.name


@dataclass(frozen=True, slots=True)
class GpuLink:
    """Whether a GPU reaches another's memory, and adds to it so that no sum of anybody's is lost. None: not known."""

    reaches: bool | None = None
    adds: bool | None = None


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """`rows`: of each device, its way to each."""

    gpus: tuple[PlacedGpu, ...]
    rows: tuple[tuple[GpuLink, ...], ...]

    def elsewhere(self, one: int, other: int) -> bool:
        """Whether two devices have different GPUs."""
        return one != other and not (self.gpus[one].known and self.gpus[one] == self.gpus[other])

    def refuse_torn(self) -> None:
        """Where a GPU is known not to reach another's memory."""
        pairs = [(a, b) for a, row in enumerate(self.rows) for b, link in enumerate(row) if link.reaches is False]
        for a, b in pairs:
            one, other = self.gpus[a], self.gpus[b]
            if one.is_slice or other.is_slice:
                raise InputError(
                    f"devices {a} and {b} are on slices of GPUs (MIG, {one.bus} and {other.bus}), which reach no other",
                    fix="use whole GPUs",
                )
            raise InputError(
                f"GPU {one.bus} of device {a} does not reach the memory of GPU {other.bus} of device {b}",
                fix="use NCCL (--backend torch, or FSDP2 as it is), or GPUs with an OK in 'nvidia-smi topo -p2p rw'",
            )

    def why_not_add(self, near: Sequence[range] = ()) -> str:
        """Why devices cannot all add to one sum of each, "" where they can. `near`: whom each reaches by addresses, all
        where it is left out."""
        every = range(len(self.gpus))
        for a, row in enumerate(self.rows):
            for b in near[a] if near else every:
                if not row[b].adds:
                    return self._told(a, b)
        return ""

    def _told(self, a: int, b: int) -> str:
        if not self.gpus[a].known or not self.gpus[b].known:
            return f"without cuda-bindings nothing says whether devices {a} and {b} can add to one sum at once"
        way = f"the link from GPU {self.gpus[a].bus} of device {a} to GPU {self.gpus[b].bus} of device {b}"
        if self.rows[a][b].adds is None:
            return f"nothing says whether {way} has native atomics, without which sums are lost"
        return f"{way} has no native atomics, without which sums are lost"


def asked(group: "dist.ProcessGroup | None", device: "torch.device") -> GpuLinks:
    """By all devices together. Processors have one memory."""
    if device.type != "cuda":
        count = _size(group)
        return GpuLinks((PlacedGpu(),) * count, ((GpuLink(True, True),) * count,) * count)
    gpus, own = _every(group, lambda: seen(device.index or 0)), _rank(group)
    return GpuLinks(gpus, _every(group, lambda: tuple(_link_of(gpus, own, other) for other in range(len(gpus)))))


def seen(number: int) -> PlacedGpu:
    """The GPU that this process counts as such."""
    if (driver := _driver()) is None:
        return PlacedGpu()
    gpu = _said(driver.cuDeviceGet(number))
    bus, uuid, name = driver.cuDeviceGetPCIBusId(32, gpu), driver.cuDeviceGetUuid(gpu), driver.cuDeviceGetName(128, gpu)
    return PlacedGpu(_text(_said(bus)), bytes(_said(uuid).bytes).hex(), _text(_said(name)))


def _link_of(gpus: Sequence[PlacedGpu], own: int, other: int) -> GpuLink:
    return GpuLink(True, True) if own == other else link(gpus[own], gpus[other])


def link(one: PlacedGpu, other: PlacedGpu) -> GpuLink:
    """From the GPU of this process."""
    if not one.known or not other.known:
        return GpuLink()
    if one == other:
        return GpuLink(True, True)
    if one.is_slice or other.is_slice:
        return GpuLink(False, False)
    driver = _driver()
    gpus = [_said(driver.cuDeviceGetByPCIBusId(each.bus.encode())) for each in (one, other)]
    return _by_nvml(one.bus, other.bus) if None in gpus else _by_driver(driver, *gpus)


def _by_driver(driver: Any, one: Any, other: Any) -> GpuLink:
    if not _said(driver.cuDeviceCanAccessPeer(one, other)):
        return GpuLink(False, False)
    kind = driver.CUdevice_P2PAttribute
    native = _said(driver.cuDeviceGetP2PAttribute(kind.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, one, other))
    some = getattr(kind, "CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED", None)  # from 13.0
    partly = some is not None and _said(driver.cuDeviceGetP2PAttribute(some, one, other))
    return GpuLink(True, None if native is None else bool(native) and not partly)


def _by_nvml(one: str, other: str) -> GpuLink:
    """It sees all GPUs, whatever a process is shown. Whether memory can be mapped is found out where it is."""
    if (nvml := _nvml()) is None:
        return GpuLink()
    gpus = [ctypes.c_void_p(), ctypes.c_void_p()]
    for bus, gpu in zip((one, other), gpus, strict=True):
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(gpu)):
            return GpuLink()
    reads, writes, adds = (_status(nvml, gpus, what) for what in (_READ, _WRITE, _ATOMICS))
    return GpuLink(False if False in (reads, writes) else None, adds)


def _status(nvml: ctypes.CDLL, gpus: list[ctypes.c_void_p], what: int) -> bool | None:
    status = ctypes.c_int()
    return None if nvml.nvmlDeviceGetP2PStatus(*gpus, what, ctypes.byref(status)) else status.value == 0


@cache
def _driver() -> Any:
    """None where nothing can be asked."""
    try:
        from cuda.bindings import driver

        return driver if int(driver.cuInit(0)[0]) == 0 else None
    except (ImportError, RuntimeError):
        return None


@cache  # and never given back, as the library counts who holds it
def _nvml() -> ctypes.CDLL | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if nvml.nvmlInit_v2() else nvml


def _said(answer: tuple[Any, ...]) -> Any:
    """What the driver brings, None where it refuses."""
    return answer[1] if int(answer[0]) == 0 else None


def _text(found: bytes) -> str:
    return found.split(b"\0", 1)[0].decode().strip()


def _rank(group: "dist.ProcessGroup | None") -> int:
    import torch.distributed as dist

    return dist.get_rank(group)


def _size(group: "dist.ProcessGroup | None") -> int:
    import torch.distributed as dist

    return dist.get_world_size(group)


def _every(group: "dist.ProcessGroup | None", ask: Callable[[], Any]) -> tuple[Any, ...]:
    import torch.distributed as dist

    from odc_engine.backends.collectives import agreed

    mine = agreed(group, ask)
    told = [mine] * _size(group)
    dist.all_gather_object(told, mine, group=group)
    return tuple(told)
