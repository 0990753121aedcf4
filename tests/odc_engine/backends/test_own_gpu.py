"""Arenas lie on the GPU where parameters are, under every mesh and launcher, and what is present to callers stays so.
torch.cuda is faked, groups are real."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import work
from fake_devices import FakeTorchCuda, install, launched, model_on
from torch.distributed.device_mesh import init_device_mesh

from odc_engine.backends import cuda_ipc, gpus, nvshmem
from odc_engine.backends.base import MAIN
from odc_engine.backends.cuda_ipc import memory as of_ipc
from odc_engine.backends.nvshmem import library
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.memory.arenas import memory_for
from odcsim.errors import InputError

LAUNCHERS = [("torchrun", "all"), ("torchrun", "own"), ("srun", "all"), ("srun", "own")]
MESHES = {
    "shards": ((4,), ("shard",)),
    "replicas and shards": ((2, 2), ("replicate", "shard")),
    "shards and tensor parallel": ((2, 2), ("shard", "tp")),
}


def taken(rank, size, group, by, visible, present=None):
    """The GPU of the arena, the parameters' own, which was present before and is after, and which were made so."""
    with launched(rank, size, by, visible, present) as (cuda, own):
        before = cuda.present
        memory = memory_for(model_on(own), 30.0, group)
        found = memory.device.index, own, (before, cuda.present), cuda.moves
        memory.meet(MAIN)
        memory.close()
    return found


def taken_under(rank, mesh):
    shape, names = MESHES[mesh]
    group = init_device_mesh("cpu", shape, mesh_dim_names=names)["shard"].get_group()
    return [taken(rank, 4, group, *how) for how in LAUNCHERS]


@pytest.mark.parametrize("mesh", MESHES)
def test_arenas_are_where_parameters_are(pools, mesh):
    for rank, found in enumerate(pools(4).run(taken_under, mesh)):
        for (by, visible), (took, own, present, moves) in zip(LAUNCHERS, found, strict=True):
            assert own == (rank if visible == "all" else 0)
            assert (took, present, moves) == (own, (own, own), []), (mesh, by, visible)


def taken_by_half(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return taken(rank, 4, groups[rank // 2], "torchrun", "all")


def test_the_later_half_of_a_machine_s_processes_keeps_its_own(pools):
    """A group's ranks start at 0 again, and GPUs do not."""
    assert [took for took, *_ in pools(4).run(taken_by_half)] == [0, 1, 2, 3]


def taken_of_eight(rank):
    groups = [dist.new_group(list(range(first, first + 4))) for first in (0, 4)]
    return taken(rank, 8, groups[rank // 4], "torchrun", "all")


def test_so_do_ranks_4_to_7_of_8(pools):
    assert [took for took, *_ in pools(8).run(taken_of_eight)] == list(range(8))


def taken_elsewhere(rank):
    return taken(rank, 2, None, "torchrun", "all", present=1 - rank)


def test_another_present_device_stays_so(pools):
    for rank, (took, own, present, moves) in enumerate(pools(2).run(taken_elsewhere)):
        assert (took, own, present, moves) == (rank, rank, (1 - rank, 1 - rank), [])


def allocated(rank):
    """Where memory was asked for, and what was present then and afterwards."""
    with launched(rank, 2, "torchrun", "all", present=1 - rank) as (cuda, _), pytest.MonkeyPatch.context() as patch:
        seen = []

        def provided(nbytes, _group, device):
            seen.append((nbytes, device.index, cuda.present))
            raise InputError("no more", fix="this is a test")

        patch.setattr(of_ipc, "provided", provided)
        memory = memory_for(model_on(rank), 30.0, None)
        assert work.told(lambda: memory.allocate(1 << 20)).startswith("no more")
        memory.close()
        return seen, cuda.present, cuda.moves, cuda.asked


def test_memory_is_made_with_its_own_device_present(pools):
    for rank, (seen, present, moves, asked) in enumerate(pools(2).run(allocated)):
        assert seen == [((1 << 20) + 4096, rank, rank)]
        assert (present, moves) == (1 - rank, [])
        assert {number for _, number in asked} == {rank}


def own_process(rank, visible):
    with launched(rank, 2, "srun", visible) as (cuda, own):
        cuda.present = 0
        memory = cuda_ipc.ROW.memory(SharedMemory(timeout=30.0))
        found = memory.device.index, own, cuda.present
        memory.close()
    return found


@pytest.mark.parametrize("visible", ["all", "own"])
def test_a_process_of_the_engine_s_own_takes_the_gpu_of_its_place(pools, visible):
    for took, own, present in pools(2).run(own_process, visible):
        assert (took, present) == (own, own)


def test_nvshmem_is_told_where_parameters_are(monkeypatch):
    install(monkeypatch, FakeTorchCuda(4))
    told = []
    device = torch.device("cpu")
    monkeypatch.setattr(library, "Nvshmem", lambda gpu: (told.append(gpu), SimpleNamespace(device=device))[1])
    host = SimpleNamespace(rank=1, size=4, timeout=1.0)
    nvshmem.ROW.memory(host, torch.device("cuda", 3))
    nvshmem.ROW.memory(host)
    assert told == [3, 1]


@pytest.mark.parametrize("kept", [0, 1 << 30])
def test_what_the_allocator_keeps_is_given_back_before_memory_is_lacking(monkeypatch, kept):
    fake = install(monkeypatch, FakeTorchCuda(4, free=1 << 20, kept=kept))
    found = work.told(lambda: gpus.check_room(1 << 25, torch.device("cuda", 3)))
    assert fake.asked == [("mem_get_info", 3), ("empty_cache", 3), ("mem_get_info", 3)]
    assert found.startswith("an arena of 0.0 GB does not fit" if not kept else "nothing was refused")
    assert fake.present == 0


def test_with_room_nothing_is_given_back(monkeypatch):
    fake = install(monkeypatch, FakeTorchCuda(2, free=1 << 30))
    gpus.check_room(1 << 20, torch.device("cuda", 1))
    assert fake.asked == [("mem_get_info", 1)]
