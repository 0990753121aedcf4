"""FSDP2's own collectives over NCCL as far as a CPU can show them: gloo in NCCL's place, transfers on fake
streams, and peers that are gone. On a GPU nobody has run it yet."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import fake_cuda
import pytest
import torch
import torch.distributed as dist
from jobs import file_of, job_for

from odc_engine import backends
from odc_engine.backends import cuda_ipc, shm
from odc_engine.backends.base import MAIN
from odc_engine.backends.nccl import device as nccl
from odc_engine.backends.nccl.device import NcclDevice
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.devices.process import ProcessDevice
from odc_engine.devices.run_device import as_block
from odc_engine.errors import BadGradient, EngineError, PeerLost
from odc_engine.fsdp.collective import Collective
from odc_engine.measuring import bandwidth as measure
from odc_engine.measuring import ground as bench
from odc_engine.measuring.ground import GpuGround, ways
from odc_engine.places import streams
from odc_engine.places.streams import StreamLane
from odc_engine.runs.verify import BOUND, reference_gradients, relative_errors

FILE = file_of((2, 2), (1, 1))
QUIET = SimpleNamespace(set_device=lambda _: None, synchronize=lambda _: None)  # a driver whose streams are done


class OnCpu(NcclDevice):
    """With gloo in NCCL's place, and a CPU in a GPU's."""

    def _own(self, gpu):
        assert gpu == self.rank
        return torch.device("cpu")

    def _made(self):
        return dist.group.WORLD  # torch remembers a mesh's group for as long as the process lives

    def close(self):
        self.finish()
        self.host.close()


def trained(rank, job):
    """A minibatch's times, and the gradients of the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "NcclDevice", OnCpu)
        patch.setattr(nccl, "_cuda", QUIET)
        device = ProcessDevice(job, rank)
        assert isinstance(device.comm, Collective)
        record = device.minibatch(1)
        fresh = ProcessDevice(job, rank)  # weights as they are at first
        fresh.gradients(job.schedules[0])
        found = fresh.whole_gradients()
        for each in (device, fresh):
            each.meet()
            each.close()
        return record, found


@pytest.mark.parametrize("sync", ["collective", "deferred"])
def test_devices_with_a_group_of_their_own_get_the_gradients_of_one_process(pools, sync):
    job = replace(job_for(FILE, sync, "torch"), backend=backends.chosen("torch", "cuda"))
    records, gradients = zip(*pools(2).run(trained, job), strict=True)
    expected = reference_gradients(job, job.schedules[0])
    for mine in gradients:
        assert max(relative_errors(mine, expected).values()) <= BOUND
    asked, had = as_block(list(records))
    steps = job.program_of(job.schedules[1]).steps
    pushes = [i for i, step in enumerate(steps) if step.kind == "push"]
    assert (had[pushes] > asked[pushes]).all()


def moved(_, why_not_add):
    """Every way of a GPU's ground, by gloo and in shared memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedMemory, "why_not_add", why_not_add)
        patch.setattr(nccl, "NcclDevice", OnCpu)
        patch.setattr("odc_engine.backends.cuda_ipc.memory.CudaMemory", lambda shared, _: shared)
        patch.setattr(type(cuda_ipc.ROW), "_checked", lambda *_: torch.device("cpu"))
        patch.setattr(bench, "lasted", lambda move, repeats: (move(), repeats * 1e-3)[1])
        patch.setattr(nccl, "_cuda", QUIET)
        ground = GpuGround(cuda_ipc.ROW, SharedMemory(timeout=30.0))
        found = measure.measured(64 << 10, ground)
        ground.close()
        return found


@pytest.mark.parametrize("why_not_add", ["", "the link has no native atomics"])
def test_bandwidth_has_the_same_ways_on_gpus_with_nccl_for_a_rival(pools, why_not_add):
    """Over links without atomics all but locked sums are measured."""
    names = list(ways(cuda_ipc.ROW))
    assert [way.replace("nccl", "gloo") for way in names[1:]] == list(ways(shm.ROW)[3:])
    for found in pools(2).run(moved, why_not_add):
        assert [rate.way for rate in found] == [way for way in names if not why_not_add or way != "push, locked"]
        assert {rate.seconds for rate in found} == {0.128}
        if not why_not_add:
            lines = measure.as_text(found).splitlines()[-len(names) + 1 :]
            assert [line.split("  ")[0] for line in lines] == names[1:]


def test_moves_are_timed_when_all_of_them_lie_on_the_stream(monkeypatch):
    events = []
    monkeypatch.setattr(streams, "pause", lambda seconds: events.append(seconds))

    class Event(fake_cuda.Event):
        def record(self):
            events.append("mark")
            super().record()

        def synchronize(self):
            events.append("wait")

        def elapsed_time(self, _other):
            return 6.0  # milliseconds, as CUDA has them

    monkeypatch.setattr(streams, "_cuda", SimpleNamespace(Event=Event))
    assert streams.lasted(lambda: events.append("move"), 3) == pytest.approx(2e-3)
    assert events == ["move", 3 * streams.HEAD_START, "mark", "move", "move", "move", "mark", "wait"]


@pytest.fixture
def single(monkeypatch):
    """Communication of one process, without a group."""
    for name, answer in (("get_rank", 1), ("get_world_size", 1), ("all_reduce", None)):
        monkeypatch.setattr(dist, name, lambda *_, answer=answer, **__: answer)
    return Collective(torch.nn.Linear(2, 2))


def test_transfers_follow_each_other_beside_compute(single, monkeypatch):
    """Each has a mark on its stream before and behind it, the second begins when the first is done, and compute waits
    for neither until it is told to."""
    marks, moved, unit = [], [], SimpleNamespace(index=0)
    monkeypatch.setattr(streams, "_cuda", fake_cuda.FakeCuda())
    tick = Mock(side_effect=lambda: marks.append(fake_cuda.current().work()))
    single.recorder = SimpleNamespace(tick=tick, given=Mock(), done=Mock())
    single._lane = StreamLane(torch.device("cuda"))
    compute, gathers, pushes = (fake_cuda.Stream() for _ in range(3))
    for kind, stream in (("gather", gathers), ("push", pushes)):
        with streams._cuda.stream(stream):
            single.transfer(kind, unit, lambda: moved.append(fake_cuda.current().work()))
    with streams._cuda.stream(compute):
        beside = fake_cuda.current().work()[2]
        single.drain()
        after = fake_cuda.current().work()[2]
    gather, push = gathers.number, pushes.number
    assert [stream for stream, *_ in marks] == [gather, gather, push, push]
    assert [(stream, number) for stream, number, _ in moved] == [(gather, 2), (push, 2)]
    assert marks[2][2][gather] == 3
    assert not beside.keys() & {gather, push}
    assert after.items() >= {gather: 3, push: 3}.items()


class Alone(OnCpu):
    """One of two, with a group that only counts."""

    def _made(self):
        self.aborted = 0
        return SimpleNamespace(abort=self._abort)

    def _abort(self):
        self.aborted += 1

    def _start(self):
        pass

    close = NcclDevice.close


@pytest.fixture
def alone(monkeypatch):
    """A device with a host like this, and what its streams do."""

    def made(synchronize=lambda _: None, **host):
        usual = {"check": lambda: None, "explain": lambda: None, "meet": lambda _: None}
        monkeypatch.setattr(nccl, "_cuda", SimpleNamespace(set_device=lambda _: None, synchronize=synchronize))
        return Alone(SimpleNamespace(rank=0, size=2, timeout=0.2, **usual | host), 0)

    return made


def died():
    raise PeerLost([1], "died (pid 7)")


@pytest.mark.parametrize("peer", [{"check": died}, {"explain": lambda: PeerLost([1], "stopped")}, {}])
def test_streams_that_wait_for_a_peer_are_given_up_in_time_and_taken_down(alone, peer):
    """A dead one; one that is named when time is up; and one of whom nothing is known."""
    device = alone(lambda _: threading.Event().wait(), **peer)
    with pytest.raises(PeerLost) as told:
        device.meet(MAIN)
    assert (told.value.devices, device.aborted) == ([1], 1)


def test_its_group_ends_with_it_and_the_processes_own_lives(alone, monkeypatch):
    ended, left = [], []
    monkeypatch.setattr(dist, "destroy_process_group", ended.append)
    device = alone(close=lambda: left.append(True))
    device.close()
    assert (ended, left) == ([device.group], [True])


def test_what_nccl_says_is_one_line(alone):
    def refuse(_):
        raise dist.DistBackendError("NCCL error in: x.cpp\nLast error:\nDuplicate GPU detected : rank 1 and rank 0\n")

    device = alone(refuse)
    with pytest.raises(EngineError, match=r"^NCCL fails: Duplicate GPU detected : rank 1 and rank 0$"):
        device.finish()
    assert device.aborted == 1


def test_a_gradient_that_is_not_finite_is_told_before_anybody_has_the_sum(single):
    """A look at one that is on a GPU tells nothing until its stream is done."""
    single.microbatches, nan = SimpleNamespace(of_push=lambda _: range(2, 3)), torch.tensor(float("nan"))
    gradient = SimpleNamespace(is_cuda=True, numel=lambda: 2, aminmax=lambda: (nan, nan))
    single.check(SimpleNamespace(index=0, name="layer 4"), gradient)
    with pytest.raises(BadGradient, match=r"layer 4 .* \(device 1, microbatch 2\)"):
        single.settle()
