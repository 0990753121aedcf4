"""Backend nvshmem without NVSHMEM: a fake keeps its promises between processes (fake_nvshmem), so that slots, order,
settling and publishing can be held against one process, and against shared memory to the last bit."""

import importlib.util
import itertools
import os
import signal
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import nets  # noqa: E402
import shards  # noqa: E402
import work  # noqa: E402
from fake_nvshmem import FakeNvshmem  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from teams import file_of, minibatch  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: E402
from work import Case  # noqa: E402

from odc_engine import fsdp, launch, placement, verify  # noqa: E402
from odc_engine.arena import Arena, UnitShape  # noqa: E402
from odc_engine.backends import nvshmem_library  # noqa: E402
from odc_engine.backends.base import COMM, MAIN  # noqa: E402
from odc_engine.backends.heap import EXTRA, HEAP, check_heap  # noqa: E402
from odc_engine.backends.nvshmem import NvshmemMemory, _run_around  # noqa: E402
from odc_engine.backends.shm import SharedMemory  # noqa: E402
from odc_engine.cli import main  # noqa: E402
from odc_engine.errors import PeerLost  # noqa: E402
from odc_engine.far import FarArena  # noqa: E402
from odc_engine.job import job_of  # noqa: E402
from odc_engine.streams import StreamLane  # noqa: E402
from odc_engine.verify import BOUND  # noqa: E402
from odcsim import schedule  # noqa: E402

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
UNEVEN = Case((4, 1, 2, 0), backend="nvshmem", accumulate="slots", machines=(2, 2))
EVEN = Case((2, 2, 2), backend="nvshmem", accumulate="slots", machines=(2, 1))
CASES = {
    "every device on a machine of its own": UNEVEN.but(machines=(1, 1, 1, 1)),
    "two machines of two": UNEVEN,
    "two machines, and parameters that few use": UNEVEN.but(model=nets.Choosy, machines=(1, 3)),
    "one machine": UNEVEN.but(machines=(4,)),
    "collective": EVEN.but(sync="collective"),
    "deferred": EVEN.but(sync="deferred"),
    "gathers ahead, and every push is waited for": EVEN.but(prefetch=2, trail=1, reshard=False),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_one_process(pools, name):
    case = CASES[name]
    expected = work.reference(case)
    found = pools(len(case.counts)).run(work.gradients, case)
    assert max(work.error(gradients, expected) for gradients in found) <= BOUND


@settings(max_examples=4)
@given(
    counts=st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any),
    machines=st.sampled_from([(1, 1, 1), (2, 1), (1, 2)]),
    model=st.sampled_from([nets.Net, nets.Choosy, nets.Half, nets.Narrow]),
)
def test_training_has_the_bits_of_slots_in_shared_memory(pools, counts, machines, model):
    """The same sums in the same order, over several minibatches."""
    case = Case(tuple(counts), model=model, backend="nvshmem", accumulate="slots", machines=machines)
    found = pools(3).run(work.trained, case, 3)
    expected = pools(3).run(work.trained, case.but(backend="shm"), 3)[0]
    for weights in found:
        assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_bf16_weights_travel_and_fp32_gradients(pools):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    case = UNEVEN.but(policy=policy)
    found = pools(4).run(work.gradients, case)[0]
    expected = pools(4).run(work.gradients, case.but(backend="shm"))[0]
    assert all(torch.equal(found[name], value) for name, value in expected.items())


UNITS = [
    UnitShape("a", 37, 37, torch.float32),
    UnitShape("b", 5, 0, torch.bfloat16),
    UnitShape("c", 64, 64, torch.bfloat16),
]


def memory_of(machines):
    return NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem(machines))


def logged(_rank, machines, pushes):
    """What a device asks the library for: pushes of units, then the minibatch's end."""
    memory = memory_of(machines)
    arena = FarArena(memory, UNITS, "slots")
    log = memory.library.log
    log.clear()
    told = []
    for unit in pushes:
        arena.push(unit, torch.ones(memory.size * UNITS[unit].push))
        told.append([what for what, _ in log])
        log.clear()
    arena.complete()
    told.append([what for what, _ in log])
    memory.meet(MAIN)
    memory.close()
    return told


def test_nothing_waits_for_what_is_sent_but_the_next_to_the_same_slots_and_the_end(pools):
    """So it travels while the next layers' backward goes on."""
    for told in pools(2).run(logged, (1, 1), (2, 0, 2, 0, 0)):
        first, once_more = ["put"], ["get", "put"]
        assert told[:2] == [first, first]
        assert told[2] == ["quiet", *once_more]
        assert told[3] == once_more  # the same quiet was good for it, too
        assert told[4] == ["quiet", *once_more]
        assert told[5] == ["quiet"]


def test_units_that_nothing_was_pushed_of_are_cleared_at_far_owners(pools):
    for told in pools(2).run(logged, (1, 1), (0,)):
        assert told == [["put"], ["put", "quiet"]]


def test_where_all_are_near_nothing_is_sent(pools):
    for told in pools(2).run(logged, (2,), (0, 2, 0)):
        assert not any(told)


def impatient(_rank, machines):
    """A second push that does not wait for the first to arrive."""
    memory = memory_of(machines)
    arena = FarArena(memory, UNITS, "slots")
    memory.arrive = lambda: None
    wrong = 0
    for _ in range(20):
        for _ in range(2):
            arena.push(0, torch.ones(memory.size * 37))
        arena.complete()
        memory.meet(MAIN)
        wrong += not torch.equal(arena.gradients(0), torch.full((37,), 4.0))
        memory.meet(MAIN)
    memory.close()
    return wrong


def test_the_fake_shows_a_missing_quiet(pools):
    assert all(pools(2).run(impatient, (1, 1)))


def refused(_rank, machines):
    memory = memory_of(machines)
    told = work.told(lambda: FarArena(memory, UNITS, "locked"))
    memory.meet(MAIN)
    memory.close()
    return told


def test_sums_that_a_network_would_have_to_add_to_are_refused(pools):
    told = pools(3).run(refused, (2, 1))
    assert told[0] == "devices 2 are beyond a network, which adds nothing to a sum; use --accumulate slots"
    assert told[2].startswith("devices 0, 1 are beyond")


class Line(FakeNvshmem):
    """Addresses reach the neighbours in a line only."""

    def mapped(self, mine, device):
        return super().mapped(mine, device) if abs(device - self._rank) < 2 else None


def near_and_met(_rank):
    memory = NvshmemMemory(SharedMemory(timeout=30.0), Line((3,)))
    told = work.told(lambda: FarArena(memory, UNITS, "locked"))
    memory.library.log.clear()
    memory.meet(MAIN)
    met = [what for what, _ in memory.library.log]
    memory.close()
    return len(memory.near), told, met


def test_what_only_some_are_near_to_is_decided_by_all_alike(pools):
    """A device that all are near to meets through the library as the others do, and refuses what they refuse."""
    found = pools(3).run(near_and_met)
    assert [near for near, *_ in found] == [2, 3, 2]
    assert all("beyond a network, which adds nothing to a sum; use --accumulate slots" in told for _, told, _ in found)
    assert [met for *_, met in found] == [["meet"]] * 3


def unlocked(_rank):
    memory = memory_of((2,))
    arena = Arena(memory, UNITS, "locked")
    told = work.told(lambda: arena.push(0, torch.ones(2 * 37)))
    memory.meet(MAIN)
    memory.close()
    return told


def test_memory_without_locks_says_so(pools):
    assert set(pools(2).run(unlocked)) == {"this memory has no locks to add to a sum under; use --accumulate slots"}


def uneven(rank):
    memory = memory_of((1, 1))
    try:
        return work.told(lambda: memory.allocate(1024 * (1 + rank)))
    finally:
        memory.close()


def test_devices_with_unlike_models_are_refused(pools):
    assert set(pools(2).run(uneven)) == {"devices share 1024, 2048 bytes; make the same model on every device"}


def trained_by_kernels(rank, case):
    """Near parts by interpreted kernels, the others through the library."""
    shards.interpreted()
    from odc_engine.kernels.arena import FarGpuArena

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp, "arena_on", lambda *given: FarGpuArena(*given[:3]))
        patch.setattr(fsdp, "lane_on", lambda device, _: StreamLane(device))  # the interpreter knows one thread
        return work.trained(rank, case, 2)


@needs_triton
@pytest.mark.parametrize("machines", [(2, 1), (1, 2)])
def test_kernels_inside_a_machine_and_the_library_beyond_give_the_same_bits(pools, machines):
    case = Case((2, 1, 1), model=nets.Narrow, backend="nvshmem", accumulate="slots", machines=machines)
    found = pools(3).run(trained_by_kernels, case)
    expected = pools(3).run(work.trained, case.but(backend="shm"), 2)[0]
    for weights in found:
        assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_near_devices_are_an_unbroken_run():
    for size in range(1, 6):
        for mapped in itertools.product([False, True], repeat=size):
            for rank in (r for r in range(size) if mapped[r]):
                run = _run_around(rank, list(mapped))
                assert rank in run
                assert all(mapped[d] for d in run)
                assert run.start == 0 or not mapped[run.start - 1]
                assert run.stop == size or not mapped[run.stop]


def verified(host, job, library):
    """A device of a run that has the fake for its library."""
    placement.nvshmem_library.Nvshmem = lambda _gpu: library
    verify._verify_device(host, job, False)


@pytest.mark.parametrize("sync", ["on-demand", "collective"])
def test_a_schedule_is_verified_through_it(sync):
    """Launched as any other: a process for each device, and its own model."""
    counts = (2, 1) if sync == "on-demand" else (1, 1)
    job = job_of(file_of(minibatch(counts)), sync=sync, backend="nvshmem", accumulate="slots", timeout=30.0)
    assert launch.run(verified, 2, 30.0, job, FakeNvshmem((1, 1))) == 0


class Endless(FakeNvshmem):
    """A meeting lies on a stream, as on a GPU, and who waits for the stream hears of nobody's death."""

    def __init__(self, machines):
        super().__init__(machines)
        self._meets, self.stopped = False, False

    def meet(self):
        self._meets = True
        if self._rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def synchronize(self):
        if self._meets:
            threading.Event().wait()

    def stop(self, mine):  # noqa: ARG002
        self.stopped = True


def dies_before_the_library_meets(host, room, seen):
    memory = NvshmemMemory(host, Endless((1, 1)))
    memory.library.meet, meet = lambda: None, memory.library.meet
    memory.allocate(1024)
    memory.library.meet = meet
    try:
        memory.meet(room)
        memory.meet(MAIN)
    except PeerLost as lost:
        memory.close()
        seen.write_text(f"{lost.devices} {memory.library.stopped}")
        raise


@pytest.mark.parametrize("room", [MAIN, COMM])
def test_a_death_ends_the_wait_for_a_stream(tmp_path, room):
    """In the training loops' meeting, between its two parts; and in a lane's, whose stream they wait for first."""
    seen = tmp_path / "seen"
    assert launch.run(dies_before_the_library_meets, 2, 30.0, room, seen) == 1
    assert seen.read_text() == "[1] False"  # nor does it enter what only all can do


def test_streams_that_do_not_end_are_given_up_in_time():
    library = SimpleNamespace(device=torch.device("cpu"), synchronize=lambda: threading.Event().wait())
    host = SimpleNamespace(rank=0, size=2, timeout=0.2, check=lambda: None, explain=lambda: None)
    with pytest.raises(PeerLost, match=r"did not end within 0\.2 s; wait longer"):
        NvshmemMemory(host, library).take()


def test_an_error_of_the_streams_is_raised():
    def broken():
        raise RuntimeError("illegal address")

    library = SimpleNamespace(device=torch.device("cpu"), synchronize=broken)
    host = SimpleNamespace(rank=0, size=2, timeout=5.0, check=lambda: None)
    with pytest.raises(RuntimeError, match="illegal address"):
        NvshmemMemory(host, library).take()


def starts_over(host, folder):
    (folder / str(host.rank)).write_text(os.environ["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"])


def test_nvshmem_starts_on_this_machine_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", raising=False)
    assert launch.run(starts_over, 2, 30.0, tmp_path) == 0
    assert {(tmp_path / str(rank)).read_text() for rank in range(2)} <= {"lo", "lo0"}


@pytest.fixture
def unstarted(monkeypatch):
    monkeypatch.setattr(nvshmem_library, "start", lambda *_: None)


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize("given", [None, "1G"])
def test_the_engine_s_own_heap_size_ends_with_the_library(monkeypatch, given):
    monkeypatch.setenv(HEAP, "")
    monkeypatch.delenv(HEAP)
    if given:
        monkeypatch.setenv(HEAP, given)
    library = object.__new__(nvshmem_library.Nvshmem)
    library.device = torch.device("cpu")
    for nbytes in (1 << 20, 1 << 27):
        check_heap(nbytes)
        library.start(None, nbytes)
        assert os.environ[HEAP] == given or int(os.environ[HEAP]) == nbytes + EXTRA
        library.stop(None)
        assert os.environ.get(HEAP) == given


@needs_triton
@pytest.mark.usefixtures("unstarted")
def test_kernels_that_are_loaded_later_are_not_told_of_a_library_that_has_ended(monkeypatch):
    import triton

    monkeypatch.setenv(HEAP, "1G")
    hooks = triton.knobs.runtime.kernel_load_end_hook.calls
    before = list(hooks)
    library = object.__new__(nvshmem_library.DeviceNvshmem)
    library.device, library._modules = torch.device("cpu"), []
    library.start(None, 1)
    assert len(hooks) == len(before) + 1
    library.stop(None)
    assert hooks == before


def lines(arguments, capsys):
    assert main(arguments) == 2
    return capsys.readouterr().err.splitlines()


@pytest.fixture
def asked(tmp_path):
    schedule.write(file_of(minibatch((2, 1))), tmp_path / "s.jsonl")
    return [str(tmp_path / "s.jsonl"), "--sync", "on-demand", "--backend", "nvshmem"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", ["run", "verify"])
def test_without_a_gpu_it_is_refused_in_a_line(command, asked, capsys):
    output = ["-o", "t.npz"] if command == "run" else []
    [line] = lines([command, *asked, *output], capsys)
    assert line.startswith("odc_engine: error: backend nvshmem needs NVIDIA GPUs, and torch ")
    assert "use --backend shm" in line


@pytest.mark.parametrize("missing", ["triton", "nvshmem"])
def test_without_a_library_it_is_refused_in_a_line(missing, asked, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found("json"))
    [line] = lines(["verify", *asked], capsys)
    name = {"triton": "Triton", "nvshmem": "nvshmem4py"}[missing]
    assert line.startswith(f"odc_engine: error: backend nvshmem needs {name}, which is not installed; pip install")


def test_several_machines_need_slots(asked, capsys, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    [line] = lines(["verify", *asked], capsys)
    assert "a network adds nothing to a sum on another machine; use --accumulate slots" in line
