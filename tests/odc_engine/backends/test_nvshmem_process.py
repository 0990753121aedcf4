"""One NVSHMEM for all arenas of a process: which share it, which are refused, and what outlives its end."""

import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import work
from fake_nvshmem import LIFE, FakeNvshmem, forget
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from work import Case

from odc_engine import OnDemand
from odc_engine.backends.base import MAIN
from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.heap import EXTRA, HEAP
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.nvshmem.process import Process
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.fsdp.groups import devices_of
from odc_engine.runs.verify import BOUND


@pytest.fixture
def library(monkeypatch):
    """As in a process that has not started NVSHMEM, with no GPU under it. What its start finds in the environment is
    in `heaps`."""
    monkeypatch.setenv("NVSHMEM_DISABLE_NVLS", "")  # undone afterwards, whoever sets it
    monkeypatch.delenv("NVSHMEM_DISABLE_NVLS")
    monkeypatch.setenv(HEAP, "")
    monkeypatch.delenv(HEAP)
    made = object.__new__(nvshmem_library.Nvshmem)
    made.device, made.process, made.heaps, made.told = torch.device("cpu"), Process(), [], []
    monkeypatch.setattr(nvshmem_library, "start", lambda *_: made.heaps.append(os.environ[HEAP]))
    monkeypatch.setattr(nvshmem_library, "ranks_of", lambda _: (0, 1))
    monkeypatch.setattr(nvshmem_library.Nvshmem, "_host", Anything([]))
    monkeypatch.setattr(nvshmem_library.Nvshmem, "_calls", Anything(made.told))
    monkeypatch.setattr(nvshmem_library.Nvshmem, "synchronize", lambda _: None)
    monkeypatch.setattr(nvshmem_library.Nvshmem, "_bytes", lambda *_: torch.zeros(48, dtype=torch.uint8))
    return made


class Anything:
    """Takes every call, and notes it."""

    def __init__(self, told):
        self._told = told

    def __getattr__(self, name):
        return lambda *args: self._told.append((name, *args)) or 48


@pytest.mark.parametrize("given", [None, "1G"])
def test_every_start_has_the_heap_of_the_first_and_leaves_the_environment_as_it_was(library, monkeypatch, given):
    """Device 0 reads it once more with each start, and the others do not: their heaps would not be of one size."""
    if given:
        monkeypatch.setenv(HEAP, given)
    for nbytes in (1 << 20, 1 << 27):
        library.start(None, nbytes)
        assert os.environ.get(HEAP) == given
        assert os.environ["NVSHMEM_DISABLE_NVLS"] == "1"
        library.stop(library.allocate(48))
    first = 1 << 30 if given else (1 << 20) + EXTRA
    assert library.heaps == [str(first)] * 2


def test_an_arena_for_which_the_first_heap_has_no_room_is_refused_unless_it_grows(library):
    library.start(None, 1 << 20)
    library.process.arenas.append(1 << 20)
    need = (2 << 20) + EXTRA
    told = work.told(lambda: library.process.check(1 << 20, grows=False))
    assert told == (
        "this process has started NVSHMEM with a heap of 68 MB, which has no room for another arena of 1 MB; "
        f"set {HEAP}={need} before the program starts"
    )
    library.process.check(1 << 20, grows=True)
    library.process.heap = need  # the way out
    library.process.check(1 << 20, grows=False)


# Over the fake, between processes of a pool, each as if it were new.


def as_new(rank, call, *args):
    forget()
    try:
        return call(rank, *args)
    finally:
        forget()


def memory_over(group, machines=(1, 1), **more):
    return NvshmemMemory(SharedMemory(group, timeout=30.0), FakeNvshmem(machines, **more))


def shared(rank):
    """Two arenas of a process over its half of all ranks, then more of them, over the same half and over others."""
    halves = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    again = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    told = []
    one, two = memory_over(halves[rank % 2]), memory_over(again[rank % 2])
    for memory in (one, two):
        memory.allocate(1024)
        memory.view(memory.rank).fill_(rank)
    for memory in (one, two):
        memory.meet(MAIN)
        place = memory.view(memory.rank)[512:]
        memory.fetch_all([(1 - memory.rank, 0, place)])
        told.append(place.unique().tolist())
        memory.meet(MAIN)
    one.close()
    two.meet(MAIN)  # NVSHMEM runs yet
    other = memory_over(None, (1, 1, 1, 1))
    told.append(work.told(lambda: other.allocate(1024)))
    other.close()
    two.close()
    told.append((LIFE.running, LIFE.starts))
    other = memory_over(None, (1, 1, 1, 1))
    told.append(work.told(lambda: other.allocate(1024)))
    other.close()
    anew = memory_over(halves[rank % 2])
    anew.allocate(4096)
    anew.close()
    told.append((LIFE.running, LIFE.starts))
    return told


def test_arenas_of_a_process_share_one_nvshmem_over_the_same_ranks_and_others_are_refused_by_all_alike(pools):
    refusal = (
        "this model is sharded over ranks 0, 1, 2, 3, and rank 0 has started NVSHMEM over ranks 0, 2, which it keeps; "
        "shard all models of a process over the same ranks, or give each processes of its own"
    )
    for rank, told in enumerate(pools(4).run(as_new, shared)):
        peer = (rank + 2) % 4
        assert told == [[peer], [peer], refusal, (False, 1), refusal, (False, 2)]


def short(_rank):
    """A heap that does not grow, and a second arena."""
    one, two = (memory_over(None, grows=False) for _ in range(2))
    one.allocate(1024)
    told = work.told(lambda: two.allocate(EXTRA))
    two.close()
    one.meet(MAIN)
    one.close()
    return told


def test_a_second_arena_that_the_heap_has_no_room_for_is_refused_by_all_alike_and_the_first_goes_on(pools):
    found = set(pools(2).run(as_new, short))
    assert len(found) == 1
    assert found.pop().endswith(f"set {HEAP}={1024 + 2 * EXTRA} before the program starts")


class Others(FakeNvshmem):
    """Something else in the process, torch's symmetric memory say, has started NVSHMEM over each rank alone."""

    @property
    def _calls(self):
        return SimpleNamespace(my_pe=lambda: 0, n_pes=lambda: 1)


def begun_by_others(_rank):
    memory = NvshmemMemory(SharedMemory(timeout=30.0), Others((1, 1)))
    told = work.told(lambda: memory.allocate(1024))
    memory.close()
    return told


def test_what_something_else_has_started_over_others_is_refused(pools):
    found = pools(2).run(as_new, begun_by_others)
    for rank, told in enumerate(found):
        assert told.startswith(f"this is device {rank} of 2 and device 0 of 1 to NVSHMEM, which something else")


CASE = Case((2, 1, 0, 1))


def trained(rank, evaluated):
    """A mesh whose shards lie on two machines, and replicas inside each. A second model of the process evaluates."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def sharded():
        model = CASE.fresh()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        memory = memory_over(devices_of(model))
        return model, OnDemand(model, memory=memory, accumulate="slots", average=False, timeout=30)

    model, odc = sharded()
    frozen, evaluation = sharded() if evaluated else (None, None)
    work.minibatch(CASE, rank, model, odc)
    found = work.whole_gradients(model)
    losses = work.evaluate(CASE, frozen, rank) if evaluated else []
    for each in (evaluation, odc) if evaluated else (odc,):
        each.close()
    return found, losses


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_user_s_models_over_a_mesh_have_the_gradients_of_one_process(pools, evaluated):
    expected = work.reference(CASE)
    for rank, (gradients, losses) in enumerate(pools(4).run(as_new, trained, evaluated)):
        assert work.error(gradients, expected) <= BOUND
        with torch.no_grad():
            alone = CASE.fresh()
            expected_losses = [CASE.loss(alone, rank, m, 77).item() for m in range(3)]
        assert losses == pytest.approx(expected_losses if evaluated else [], rel=1e-5)
