"""NVSHMEM as far as a machine without a GPU goes: processes start it together. Skipped where
nvshmem4py is not installed, which `make test` does on Linux for x86-64."""

import ctypes
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks

from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.errors import PeerLost

pytestmark = pytest.mark.slow


def started(_rank):
    import nvshmem.bindings
    import nvshmem.core

    nvshmem_library.start()
    return nvshmem.bindings.init_status(), nvshmem.core.my_pe(), nvshmem.core.n_pes()


def test_two_processes_without_a_gpu_know_each_other():
    assert on_ranks(started, 2, 60.0) == [(nvshmem_library.BOOTSTRAPPED, rank, 2) for rank in range(2)]


def started_again(rank):
    import nvshmem.bindings

    alone = [dist.new_group([device]) for device in range(2)]
    nvshmem_library.start()
    nvshmem_library.start(alone[rank])
    return nvshmem.bindings.my_pe(), nvshmem.bindings.n_pes()


def test_a_second_start_over_others_gets_the_devices_of_the_first_without_a_word():
    """Why others are refused, and why it is asked after a start who is there."""
    assert on_ranks(started_again, 2, 60.0) == [(0, 2), (1, 2)]


def test_what_is_called_past_nvshmem4py_is_the_library_that_it_uses():
    """Not another copy, which would know nothing of a start."""
    from nvshmem.bindings._internal.nvshmem import _inspect_function_pointers

    nvshmem_library.versions()
    host, used = nvshmem_library.host_library(), _inspect_function_pointers()
    called = [name for name in vars(host) if name.startswith("nvshmem")]
    assert len(called) == 4
    assert [_address(getattr(host, name)) for name in called] == [used[f"__{name}"] for name in called]


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def starts_past_nvshmem4py(rank, seen):
    """Device 1 comes to the start only when device 0 has said, while it waits there, that its other thread runs."""
    import nvshmem.bindings
    import nvshmem.core

    told = [nvshmem.core.get_unique_id(empty=rank != 0)]
    dist.broadcast_object_list(told, group_src=0)
    attributes = nvshmem.bindings.InitAttr()
    nvshmem.bindings.set_attr_uniqueid_args(rank, 2, told[0].ptr, attributes.ptr)
    by_id = int(nvshmem.bindings.Flags.INIT_WITH_UNIQUEID)
    entered = threading.Event()

    def runs():
        entered.wait()
        for _ in range(20):  # the lock is asked for each time
            time.sleep(0.01)
        seen.touch()

    threading.Thread(target=runs, daemon=True).start()
    while rank == 1 and not seen.exists():
        time.sleep(0.01)
    entered.set()
    nvshmem_library.host_library().nvshmemx_hostlib_init_attr(by_id, ctypes.c_void_p(attributes.ptr))
    return seen.exists(), nvshmem.bindings.init_status()


def test_other_threads_run_while_nvshmem_waits_for_a_peer(tmp_path):
    """In its start: what allocates, frees, ends and meets is called the same way, and waits on GPUs only."""
    found = on_ranks(starts_past_nvshmem4py, 2, 60.0, tmp_path / "seen")
    assert found == [(True, nvshmem_library.BOOTSTRAPPED)] * 2


def waits_for_a_start(rank):
    """Device 1 takes the id and never comes."""
    if rank == 1:
        dist.broadcast_object_list([None], group_src=0)
        dist.barrier()  # it lives as long as it is waited for
        return ""
    library = SimpleNamespace(
        device=torch.device("cpu"), room=lambda _: None, start=lambda group, _: nvshmem_library.start(group)
    )
    host = SimpleNamespace(rank=0, size=2, timeout=0.5, group=None, check=lambda: None, explain=lambda: None)
    memory = NvshmemMemory(host, library)
    with pytest.raises(PeerLost) as told:
        memory._bounded(lambda: library.start(None, 1), "NVSHMEM's start")
    dist.barrier()
    return str(told.value)


def test_a_start_to_which_a_device_never_comes_is_given_up_in_time():
    """nvshmem4py lets other threads run meanwhile."""
    told, _ = on_ranks(waits_for_a_start, 2, 60.0)
    assert told.startswith("device 1 may keep this one waiting for NVSHMEM's start, which did not end within 0.5 s")
