"""One NVSHMEM for all arenas of a process, from its start to its end, over the fake: which share it, which are refused,
who is gone meanwhile, and what is given back."""

import os
import signal
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist
import work
from fake_nvshmem import LIFE, FakeNvshmem, forget
from teams import file_of, minibatch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transports import refused
from work import Case

from odc_engine import OnDemand
from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.heap import EXTRA, HEAP
from odc_engine.backends.nvshmem.library import Nvshmem
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.nvshmem.process import Process
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import PeerLost
from odc_engine.fsdp.units import devices_of
from odc_engine.job import job_of
from odc_engine.runs import launch, start, verify
from odc_engine.runs.verify import BOUND
from odcsim.errors import InputError


@pytest.fixture
def library(monkeypatch):
    """As in a process that has not started NVSHMEM, with no GPU under it. Its calls are in `told`, and what its start
    finds in the environment is in `heaps`."""
    for name in ("NVSHMEM_DISABLE_NVLS", HEAP):
        monkeypatch.setenv(name, "")  # undone afterwards, whoever sets it
        monkeypatch.delenv(name)
    made, memory, told = object.__new__(Nvshmem), torch.zeros(64, dtype=torch.uint8), Mock()
    made.device, made.process, made.heaps, made.told = torch.device("cpu"), Process(), [], told
    told.nvshmem_malloc.return_value = memory.data_ptr()
    monkeypatch.setattr(nvshmem_library, "start", lambda *_: made.heaps.append(os.environ[HEAP]))
    monkeypatch.setattr(nvshmem_library, "ranks_of", lambda _: (0, 1))
    for name, value in (("_host", told), ("_stream", 7), ("synchronize", lambda _: told.synchronize())):
        monkeypatch.setattr(Nvshmem, name, value)
    monkeypatch.setattr(Nvshmem, "_bytes", lambda *given: memory[: given[-1]])
    return made


@pytest.mark.parametrize("given", [None, "1G"])
def test_every_start_has_the_heap_of_the_first_and_leaves_the_environment_as_it_was(library, monkeypatch, given):
    """Device 0 reads it once more with each start, and the others do not: their heaps would not be of one size."""
    if given:
        monkeypatch.setenv(HEAP, given)
    for nbytes in (1 << 20, 1 << 27):
        library.start(None, nbytes)
        library.start(None, nbytes)  # it runs already
        assert os.environ.get(HEAP) == given
        assert os.environ["NVSHMEM_DISABLE_NVLS"] == "1"
        library.stop(library.allocate(48))
    first = 1 << 30 if given else (1 << 20) + EXTRA
    assert library.heaps == [str(first)] * 2


def test_what_waits_for_peers_is_called_past_nvshmem4py(library):
    """Which keeps the interpreter's lock meanwhile. Freed is what was allocated."""
    mine = library.allocate(48)
    library.meet()
    library.stop(None)
    library.stop(mine)
    freed = call.nvshmem_free(library.told.nvshmem_malloc()), call.nvshmemx_hostlib_finalize()
    before = call.nvshmem_malloc(48), call.nvshmemx_barrier_all_on_stream(7), call.synchronize()
    assert library.told.method_calls[:-1] == [*before, *freed]
    library.told.nvshmem_malloc.return_value = 0
    with pytest.raises(InputError):
        library.allocate(48)


def test_an_arena_for_which_the_first_heap_has_no_room_is_refused_unless_it_grows(library):
    library.start(None, 1 << 20)
    library.process.arenas.append(1 << 20)
    need = (2 << 20) + EXTRA
    with pytest.raises(InputError, match=f"{HEAP}={need} "):
        library.process.check(1 << 20, grows=False)
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
    halves, again = ([dist.new_group(ranks) for ranks in ([0, 2], [1, 3])] for _ in range(2))
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
    for last in (two, None):
        other = memory_over(None, (1, 1, 1, 1))
        told.append(refused(lambda other=other: other.allocate(1024)))
        other.close()
        if last:
            last.close()
        told.append((LIFE.running, LIFE.starts))
    anew = memory_over(halves[rank % 2])
    anew.allocate(4096)
    anew.close()
    return [*told, (LIFE.running, LIFE.starts)]


def test_arenas_of_a_process_share_one_nvshmem_over_the_same_ranks_and_others_are_refused(pools):
    for rank, told in enumerate(pools(4).run(as_new, shared)):
        peer = (rank + 2) % 4
        assert told == [[peer], [peer], "InputError", (False, 1), "InputError", (False, 1), (False, 2)]


class Others(FakeNvshmem):
    """Something else in the process, torch's symmetric memory say, has started NVSHMEM over each rank alone."""

    _calls = SimpleNamespace(my_pe=lambda: 0, n_pes=lambda: 1)


def cannot_have(_rank, library, nbytes):
    """What something else has started over others; or a second arena in a heap that does not grow."""
    one, other = memory_over(None, grows=False), NvshmemMemory(SharedMemory(timeout=30.0), library((1, 1), grows=False))
    if nbytes > 1024:
        one.allocate(1024)
    told = refused(lambda: other.allocate(nbytes))
    other.close()
    if nbytes > 1024:
        one.meet(MAIN)  # and the first goes on
    one.close()
    return told


@pytest.mark.parametrize(("library", "nbytes"), [(Others, 1024), (FakeNvshmem, EXTRA)])
def test_what_nvshmem_cannot_have_is_refused_by_all(pools, library, nbytes):
    assert pools(2).run(as_new, cannot_have, library, nbytes) == ["InputError"] * 2


CASE = Case((2, 1, 0, 1))


def trained(rank):
    """A mesh whose shards lie on two machines, and replicas inside each. A second model of the process evaluates."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    made = []
    for _ in range(2):
        model = CASE.fresh()
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh)
        memory = memory_over(devices_of(model))
        made.append((model, OnDemand(model, memory=memory, accumulate="slots", average=False, timeout=30)))
    (model, odc), (frozen, evaluation) = made
    work.minibatch(CASE, rank, model, odc)
    found = work.whole_gradients(model), work.evaluate(CASE, frozen, rank)
    evaluation.close()
    odc.close()
    return found


def test_a_user_s_models_over_a_mesh_have_the_gradients_of_one_process(pools):
    expected = work.reference(CASE)
    for rank, (gradients, losses) in enumerate(pools(4).run(as_new, trained)):
        assert work.error(gradients, expected) <= BOUND
        assert losses == pytest.approx(work.evaluate(CASE, CASE.fresh(), rank), rel=1e-5)


# Who is gone where NVSHMEM waits without end. Launched as any other: a process for each device, and its own model.


def verified(host, job, library):
    nvshmem_library.Nvshmem = lambda _gpu: library
    start.on_process(host, job, verify._verify, (job, False))


@pytest.mark.parametrize("sync", ["on-demand", "collective"])
def test_a_schedule_is_verified_through_it(sync):
    counts = (2, 1) if sync == "on-demand" else (1, 1)
    job = job_of(file_of(minibatch(counts)), sync=sync, backend="nvshmem", accumulate="slots", timeout=30.0)
    assert launch.run(verified, 2, 30.0, job, FakeNvshmem((1, 1))) == 0


def dies(host, place, folder):
    """Device 1, inside a call of the library: the other one's then never returns. Or just when both have started."""
    library, started, stopped = FakeNvshmem((1, 1)), folder / "started", folder / "stopped"
    start, allocate = library.start, library.allocate

    def deadly(*_):
        if host.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    def starts(*args):
        start(*args)
        if host.rank == 0:
            started.touch()
            return
        while not started.exists():
            time.sleep(0.001)
        deadly()

    memory = NvshmemMemory(host, library)
    try:
        if place == "started":
            library.start, library.allocate = starts, lambda nbytes: stopped.touch() or allocate(nbytes)
        elif place in TOGETHER:
            setattr(library, place, deadly)
        memory.allocate(1024)
        if place in (MAIN, COMM):  # a meeting lies on a stream, as on a GPU, and who waits for it hears of nobody
            under_way = []
            library.stop = lambda *_: stopped.touch()  # nobody enters what only all can do
            library.meet = lambda: deadly() if host.rank == 1 else under_way.append(True)
            library.synchronize = lambda: deadly() if under_way else None
            memory.meet(place)
            memory.meet(MAIN)
        memory.close()
    except PeerLost as error:
        memory.close()  # asks the library for nothing any more
        (folder / "seen").write_text(str(error.devices))
        raise


TOGETHER = ("start", "allocate", "stop")


@pytest.mark.parametrize("place", [*TOGETHER, "started", MAIN, COMM])
def test_a_death_inside_what_all_do_together_ends_the_wait_for_it(tmp_path, place):
    """Nobody asks for memory before all have started, nor enters what only all can do once one is gone."""
    assert launch.run(dies, 2, 30.0, place, tmp_path) == 1
    assert (tmp_path / "seen").read_text() == "[1]"
    assert not (tmp_path / "stopped").exists()


@pytest.mark.parametrize("kind", [PeerLost, RuntimeError])
def test_streams_that_do_not_end_are_given_up_and_their_errors_raised(kind):
    def synchronize():
        if kind is PeerLost:
            threading.Event().wait()
        raise RuntimeError("illegal address")

    library = SimpleNamespace(device=torch.device("cpu"), synchronize=synchronize)
    host = SimpleNamespace(rank=0, size=2, timeout=0.2, check=lambda: None, explain=lambda: None)
    with pytest.raises(kind):
        NvshmemMemory(host, library).take()


def starts_over(host, folder):
    (folder / str(host.rank)).write_text(os.environ["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"])


def test_nvshmem_starts_on_this_machine_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", raising=False)
    assert launch.run(starts_over, 2, 30.0, tmp_path) == 0
    assert {(tmp_path / str(rank)).read_text() for rank in range(2)} <= {"lo", "lo0"}
