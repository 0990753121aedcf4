"""Arenas, marks, times and copies are on the GPU where parameters are, under every mesh and launcher, and what is
present to callers stays so. torch.cuda is faked, groups are real."""

import contextlib
import io
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import work
from fake_devices import FakeTorchCuda, install, launched, model_on
from torch.distributed.device_mesh import init_device_mesh
from transports import refused

from odc_engine.backends import cuda_ipc, gpus, nvshmem
from odc_engine.backends.base import MAIN
from odc_engine.backends.cuda_ipc import arenas as of_arenas
from odc_engine.backends.cuda_ipc import legacy_ipc
from odc_engine.backends.cuda_ipc import memory as of_ipc
from odc_engine.backends.cuda_ipc.legacy_ipc import Shown
from odc_engine.backends.nvshmem import library
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.kernels import calls, copies
from odc_engine.memory.arenas import memory_for
from odc_engine.places import streams
from odc_engine.places.streams import WholeGpu
from odcsim.errors import InputError

LAUNCHERS = [("torchrun", "all"), ("torchrun", "own"), ("srun", "all"), ("srun", "own")]
MESHES = {
    "shards": ((4,), ("shard",)),
    "replicas and shards": ((2, 2), ("replicate", "shard")),
    "shards and tensor parallel": ((2, 2), ("shard", "tp")),
    "halves": None,  # a group's ranks start at 0 again, and GPUs do not
}


def taken(rank, size, mesh, how):
    """Of each way to be launched: the GPU of the arena, the parameters' own, which was present before and is after, and
    which were made so."""
    group, found = None, []
    if mesh == "halves":
        groups = [dist.new_group(list(range(first, first + size // 2))) for first in (0, size // 2)]
        group = groups[2 * rank // size]
    elif mesh:
        shape, names = MESHES[mesh]
        group = init_device_mesh("cpu", shape, mesh_dim_names=names)["shard"].get_group()
    for by, visible, *others in how:
        with launched(rank, size, by, visible, others[rank] if others else None) as (cuda, own):
            before = cuda.present
            memory = memory_for(model_on(own), 30.0, group)
            found.append((memory.device.index, own, (before, cuda.present), cuda.moves))
            memory.meet(MAIN)
            memory.close()
    return found


@pytest.mark.parametrize(("mesh", "size"), [*((mesh, 4) for mesh in MESHES), ("halves", 8)])
def test_arenas_are_where_parameters_are(pools, mesh, size):
    launchers = LAUNCHERS if size == 4 else LAUNCHERS[:1]
    for rank, found in enumerate(pools(size).run(taken, size, mesh, launchers)):
        own = [rank if visible == "all" else 0 for _, visible in launchers]
        assert found == [(number, number, (number, number), []) for number in own]


def test_another_present_device_stays_so(pools):
    found = pools(2).run(taken, 2, None, [("torchrun", "all", 1, 0)])
    assert found == [[(rank, rank, (1 - rank, 1 - rank), [])] for rank in range(2)]


def allocated(rank):
    """Where memory was asked for, and what was present then and afterwards."""
    with launched(rank, 2, "torchrun", "all", present=1 - rank) as (cuda, _), pytest.MonkeyPatch.context() as patch:
        seen = []

        def provided(nbytes, _group, device):
            seen.append((nbytes, device.index, cuda.present))
            raise InputError("no more", fix="this is a test")

        patch.setattr(of_ipc, "provided", provided)
        memory = memory_for(model_on(rank), 30.0, None)
        told = refused(lambda: memory.allocate(1 << 20))
        memory.close()
        return told, seen, (cuda.present, cuda.moves), {number for _, number in cuda.asked}


def test_memory_is_made_with_its_own_device_present(pools):
    for rank, found in enumerate(pools(2).run(allocated)):
        assert found == ("InputError", [((1 << 20) + 4096, rank, rank)], (1 - rank, []), {rank})


def own_process(rank, visible):
    with launched(rank, 2, "srun", visible) as (cuda, own):
        cuda.present = 0
        memory = cuda_ipc.ROW.memory(SharedMemory(timeout=30.0))
        found = memory.device.index, cuda.present, own
        memory.close()
    return found


@pytest.mark.parametrize("visible", ["all", "own"])
def test_a_process_of_the_engine_s_own_takes_the_gpu_of_its_place(pools, visible):
    assert all(took == present == own for took, present, own in pools(2).run(own_process, visible))


def test_nvshmem_is_told_where_parameters_are(monkeypatch):
    install(monkeypatch, FakeTorchCuda(4))
    told = []
    device = torch.device("cpu")
    monkeypatch.setattr(library, "Nvshmem", lambda gpu: (told.append(gpu), SimpleNamespace(device=device))[1])
    host = SimpleNamespace(rank=1, size=4, timeout=1.0)
    nvshmem.ROW.memory(host, torch.device("cuda", 3))
    nvshmem.ROW.memory(host)
    assert told == [3, 1]


@pytest.mark.parametrize(
    ("free", "kept", "told", "twice"),
    [(1 << 30, 0, "", 0), (1 << 25, 0, "", 0), (1 << 20, 1 << 30, "", 1), (1 << 20, 0, "InputError", 1)],
)
def test_what_the_allocator_keeps_is_given_back_before_memory_is_lacking(monkeypatch, free, kept, told, twice):
    fake = install(monkeypatch, FakeTorchCuda(4, free=free, kept=kept))
    assert refused(lambda: gpus.check_room(1 << 25, torch.device("cuda", 3))) == told
    assert fake.asked == [("mem_get_info", 3), *[("empty_cache", 3), ("mem_get_info", 3)] * twice]
    assert fake.present == 0


# Parameters are on the fourth GPU and the first is present to the caller: whatever is asked is asked of the fourth.

FOURTH = torch.device("cuda", 3)


@pytest.fixture
def cuda(monkeypatch):
    fake = install(monkeypatch, FakeTorchCuda(4))
    yield fake
    assert {number for _, number in fake.asked} == {3}
    assert (fake.present, fake.moves) == (0, [])


class OnFourth(torch.Tensor):
    """Taken for a tensor of that GPU."""

    device, is_cuda = FOURTH, True


def test_a_place_marks_waits_and_takes_times_on_its_gpu(cuda, monkeypatch):
    place = WholeGpu(FOURTH)
    place.mark().check()
    place.finish()
    assert {call for call, _ in cuda.asked} == {"record", "current_stream", "synchronize"}
    clock = place.clock()
    clock.start()
    clock.tick()
    assert [call for call, _ in cuda.asked].count("record") == 3
    monkeypatch.setattr(streams, "pause", lambda _: cuda.synchronize())
    place.wait(0.1)
    for name in ("gather", "nodes"):
        for _ in range(2):
            place.lane(name).give(lambda: None).check()
        place.lane(name).drain()


def test_copies_and_kernels_go_there(cuda):
    class Kernel:
        def __getitem__(self, grid):
            return lambda *_, **__: cuda.synchronize()

    tensor = torch.zeros(4).as_subclass(OnFourth)
    assert copies._stream(tensor) == 103
    for _ in range(2):  # the first launch of a kind has a way of its own
        calls.call(Kernel(), (1,), 3, tensor)
    assert cuda.asked[-2:] == [("synchronize", 3)] * 2


# How GPUs of a node come by arenas that all of them map: one way for all, whatever fails on one of them. torch's
# symmetric memory is stood in for as it is in 2.11 and 2.13: its backend is CUDA already, and setting it raises.

SYMMETRIC = "torch.distributed._symmetric_memory"


class Handle:
    def get_buffer(self, device, sizes, dtype, offset):
        assert (sizes, dtype, offset) == ((64,), torch.uint8, 0)
        return torch.full(sizes, device, dtype=dtype)


def provided(rank, backend, fails):
    """Which way this device went, or what it was refused, and whether it said so. `fails`: of each device, the steps
    that raise there."""

    def step(name, result):
        def call(*_args, **_how):
            if name in fails[rank]:
                raise RuntimeError(f"no {name} here")
            return result

        return call

    def set_backend(name):
        assert name == "CUDA"
        if backend == "CUDA":
            raise RuntimeError("SymmetricMemory does not find allocation backend CUDA")

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as words:
        patch.setattr(f"{SYMMETRIC}.get_backend", lambda _: backend)
        patch.setattr(f"{SYMMETRIC}.set_backend", set_backend)
        patch.setattr(f"{SYMMETRIC}.empty", step("empty", torch.zeros(64, dtype=torch.uint8)))
        patch.setattr(f"{SYMMETRIC}.rendezvous", step("rendezvous", Handle()))
        patch.setattr(legacy_ipc, "own", step("own", Shown(torch.zeros(64, dtype=torch.uint8), ("how",))))
        patch.setattr(legacy_ipc, "mapped", step("mapped", ([], "handles")))
        found = []
        told = work.told(lambda: found.append(of_arenas.provided(64, dist.group.WORLD, torch.device("cpu"))))
        if not found:
            return told, words.getvalue()
        every, keep = found[0]
        return keep if keep == "handles" else [int(arena[0]) for arena in every], words.getvalue()


@pytest.mark.parametrize("backend", ["CUDA", None, "NVSHMEM"])
def test_symmetric_memory_is_taken_whatever_its_backend_was(pools, backend):
    assert pools(2).run(provided, backend, [(), ()]) == [([0, 1], ""), ([0, 0], "")]


@pytest.mark.parametrize("step", ["empty", "rendezvous"])
@pytest.mark.parametrize("devices", [(0,), (1,), (0, 1)])
def test_where_it_fails_on_one_device_all_take_handles(pools, step, devices):
    """One device says what failed, and where."""
    first, second = pools(2).run(provided, "CUDA", [(step,) * (device in devices) for device in range(2)])
    why = f"(device {devices[0]}: RuntimeError: no {step} here)"
    assert first == ("handles", f"odc_engine: CUDA IPC handles instead of symmetric memory {why}\n")
    assert second == ("handles", "")


@pytest.mark.parametrize(("device", "step"), [(0, "own"), (1, "mapped")])
def test_where_neither_goes_all_are_told_the_same(pools, device, step):
    fails = [("empty", step) if rank == device else ("empty",) for rank in range(2)]
    (first, _), (second, _) = pools(2).run(provided, "CUDA", fails)
    assert first == second
    assert f"(device {device}: RuntimeError: no {step} here)" in first
