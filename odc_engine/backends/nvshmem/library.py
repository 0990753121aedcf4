"""NVSHMEM through nvshmem4py: which versions are there, starting it, and what the backend asks of it. Importing this
imports neither.

NVSHMEM ends the process on many errors, so ask for a GPU before anything but starting.

nvshmem4py lets other threads run while it starts NVSHMEM, but not while it allocates, frees, finalizes and meets: there
it keeps the interpreter's lock (0.4.1), and a peer that dies inside stops all threads of the others. So these are
called through `host_library`. nvshmem4py then does not count the memory, and has only its own word for it that NVSHMEM
runs: nothing of `nvshmem.core` but what is used here would find either right.
"""

import ctypes
import functools
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from odc_engine.backends.gpus import check_room, refuse_without, refuse_without_gpus
from odc_engine.backends.nvshmem.heap import taken
from odc_engine.backends.nvshmem.process import PROCESS, ranks_of
from odcsim.errors import InputError

BOOTSTRAPPED = 1  # init_status: devices know each other; no GPU is set up


def versions() -> tuple[str, str]:
    """Of the host's library and of nvshmem4py, as they would be used. ImportError, or what NVSHMEM's own search raises,
    where something is not there."""
    import nvshmem.core

    found = nvshmem.core.get_version()
    return found.libnvshmem_version, found.nvshmem4py_version


@functools.cache
def host_library() -> ctypes.CDLL:
    """NVSHMEM as nvshmem4py has loaded it, for what may wait for a peer. Other threads run during its calls."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    host = ctypes.CDLL(load_nvidia_dynamic_lib("nvshmem_host").abs_path)
    host.nvshmem_malloc.argtypes, host.nvshmem_malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    host.nvshmem_free.argtypes, host.nvshmem_free.restype = [ctypes.c_void_p], None
    host.nvshmemx_barrier_all_on_stream.argtypes, host.nvshmemx_barrier_all_on_stream.restype = [ctypes.c_void_p], None
    host.nvshmemx_hostlib_finalize.argtypes, host.nvshmemx_hostlib_finalize.restype = [], None
    return host


def start(group: dist.ProcessGroup | None = None, gpu: int | None = None) -> None:
    """Have all devices of a group know each other. Without a GPU that is all that works afterwards."""
    import nvshmem.core

    device = None
    if gpu is not None:
        from cuda.core import Device

        device = Device(gpu)
        device.set_current()
    rank = dist.get_rank(group)
    told: list[Any] = [nvshmem.core.get_unique_id(empty=rank != 0)]
    dist.broadcast_object_list(told, group=group, group_src=0)
    nvshmem.core.init(
        device=device, uid=told[0], rank=rank, nranks=dist.get_world_size(group), initializer_method="uid"
    )


def stop() -> None:
    """Nothing of it may be allocated any more."""
    host_library().nvshmemx_hostlib_finalize()


def refuse_without_nvshmem() -> None:
    """In one line, before anything is started."""
    refuse_without_gpus("nvshmem")
    refuse_without("nvshmem", "nvshmem", "nvshmem4py")


class Nvshmem:
    """Transfers by the host's calls, on the stream that is current. `gpu`: of this machine's."""

    process = PROCESS

    def __init__(self, gpu: int) -> None:
        refuse_without_nvshmem()
        self.device = torch.device("cuda", gpu % torch.cuda.device_count())
        torch.cuda.set_device(self.device)

    def room(self, nbytes: int) -> None:
        check_room(taken(nbytes), self.device)
        self.process.check(nbytes, grows=self._grows())

    def _grows(self) -> bool:
        """Whether memory comes to the heap as it is asked for, as where NVSHMEM finds all that it takes for that."""
        from cuda.core import Device

        found = Device(self.device.index).properties
        able = found.virtual_memory_management_supported and found.gpu_direct_rdma_with_cuda_vmm_supported
        return bool(able) and os.environ.get("NVSHMEM_DISABLE_CUDA_VMM", "0") in ("", "0")

    def start(self, group: dist.ProcessGroup | None, nbytes: int) -> None:
        """Where it runs for another arena already, that is it."""
        if not self.process.running:
            with self.process.starting(nbytes):
                self._join(group)
            self.process.devices, self.process.gpu = ranks_of(group), self.device.index
            self.process.running = True

    def _join(self, group: dist.ProcessGroup | None) -> None:
        start(group, self.device.index)

    def check_joined(self, rank: int, size: int) -> None:
        """Somebody else in this process may have started NVSHMEM before, over other devices."""
        found = self._calls.my_pe(), self._calls.n_pes()
        if found != (rank, size):
            raise InputError(
                f"this is device {rank} of {size} and device {found[0]} of {found[1]} to NVSHMEM, which something else"
                " in this process has started",
                fix="use no other NVSHMEM beside the engine's, torch's symmetric memory by NVSHMEM among them",
            )

    @property
    def _calls(self) -> Any:
        import nvshmem.bindings

        return nvshmem.bindings

    @property
    def _host(self) -> Any:
        return host_library()

    @property
    def _stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    def allocate(self, nbytes: int) -> Tensor:
        if not (address := self._host.nvshmem_malloc(nbytes)):
            raise InputError(f"NVSHMEM has no {nbytes} bytes", fix="use more devices, or a smaller model")
        self.process.arenas.append(nbytes)
        return self._bytes(address, nbytes)

    def mapped(self, mine: Tensor, device: int) -> Tensor | None:
        address = self._calls.ptr(mine.data_ptr(), device)
        return self._bytes(address, mine.nbytes) if address else None

    def _bytes(self, address: int, nbytes: int) -> Tensor:
        """As nvshmem4py makes tensors: a peer's memory, too, is the own GPU's to torch. Freeing it is not theirs."""
        from cuda.core import Buffer, Device
        from nvshmem.core import NvshmemResource

        held = Buffer.from_handle(address, nbytes, mr=NvshmemResource(Device(self.device.index)))
        made: Tensor = torch.utils.dlpack.from_dlpack(held).view(torch.uint8)
        return made

    # Addresses, because nvshmem4py's own calls know whole buffers only.

    def get_nbi(self, into: Tensor, place: Tensor, device: int) -> None:
        self._calls.getmem_nbi_on_stream(into.data_ptr(), place.data_ptr(), into.nbytes, device, self._stream)

    def put_nbi(self, place: Tensor, data: Tensor, device: int) -> None:
        self._calls.putmem_nbi_on_stream(place.data_ptr(), data.data_ptr(), data.nbytes, device, self._stream)

    def quiet(self) -> None:
        self._calls.quiet_on_stream(self._stream)

    def meet(self) -> None:
        """The host waits, too, for those that it shares a GPU with without MPS. NVSHMEM has no other meeting there."""
        self._host.nvshmemx_barrier_all_on_stream(self._stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def stop(self, mine: Tensor | None) -> None:
        """It ends with the last arena."""
        if mine is None:
            return
        self.synchronize()
        self._host.nvshmem_free(mine.data_ptr())
        self.process.arenas.remove(mine.nbytes)
        if not self.process.arenas:
            self._end()

    def _end(self) -> None:
        self._host.nvshmemx_hostlib_finalize()
        self.process.running = False
