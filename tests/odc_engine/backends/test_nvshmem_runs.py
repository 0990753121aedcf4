"""Backend nvshmem from its start to its end, with the fake for NVSHMEM: runs, who is gone, and what is given back."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fake_nvshmem import FakeNvshmem, forget
from teams import file_of, minibatch

from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.nvshmem.process import Process
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import PeerLost
from odc_engine.job import job_of
from odc_engine.runs import launch, start, verify
from odcsim.errors import InputError


def verified(host, job, library):
    """A device of a run that has the fake for its library."""
    nvshmem_library.Nvshmem = lambda _gpu: library
    start.on_process(host, job, verify._verify, (job, False))


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
        if self._calls.my_pe() == 1:
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


class Deadly(FakeNvshmem):
    """Device 1 dies inside a call that only all can do together. The other one's call then never returns."""

    def __init__(self, machines, place):
        super().__init__(machines)
        setattr(self, place, self._die)

    def _die(self, *_):
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()


def begun_and_ended(memory):
    memory.allocate(1024)
    memory.close()


def dies_inside(host, place, seen):
    memory = NvshmemMemory(host, Deadly((1, 1), place))
    try:
        begun_and_ended(memory)
    except PeerLost as lost:
        memory.close()  # asks the library for nothing any more
        seen.write_text(f"{lost.devices} {lost}")
        raise


TOGETHER = {"start": "NVSHMEM's start", "allocate": "NVSHMEM's memory", "stop": "NVSHMEM's end"}


@pytest.mark.parametrize("place", TOGETHER)
def test_a_death_inside_what_all_do_together_ends_the_wait_for_it(tmp_path, place):
    seen = tmp_path / "seen"
    assert launch.run(dies_inside, 2, 30.0, place, seen) == 1
    assert seen.read_text().startswith("[1] device 1 died (pid ")


def dies_once_started(host, folder):
    """Device 1 dies when device 0, too, has started. What device 0 asks for all the same, it says."""
    started, library = folder / "started", FakeNvshmem((1, 1))
    start, allocate = library.start, library.allocate

    def starts(*args):
        start(*args)
        if host.rank == 0:
            started.touch()
            return
        while not started.exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    def allocates(nbytes):
        (folder / "asked").touch()
        return allocate(nbytes)

    library.start, library.allocate = starts, allocates
    try:
        NvshmemMemory(host, library).allocate(1024)
    except PeerLost as lost:
        (folder / "seen").write_text(f"{lost.devices} {lost}")
        raise


def test_nobody_asks_for_memory_before_all_have_started(tmp_path):
    assert launch.run(dies_once_started, 2, 30.0, tmp_path) == 1
    assert not (tmp_path / "asked").exists()
    assert (tmp_path / "seen").read_text().startswith("[1] device 1 died (pid ")


def waits_alone(rank, place):
    """What a device says whose call of the library never returns, though everybody lives."""
    memory = NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem((1, 1)))
    given_up = threading.Event()

    def never(*_):
        memory.host.timeout = 0.2  # not before: what does come may take its time
        given_up.wait()

    setattr(memory.library, place, never)
    with pytest.raises(PeerLost) as told:
        begun_and_ended(memory)
    given_up.set()
    memory.close()
    forget()
    assert told.value.devices == [1 - rank]
    return str(told.value)


@pytest.mark.parametrize(("place", "what"), list(TOGETHER.items()))
def test_who_does_not_come_to_what_all_do_together_is_named_in_time(pools, place, what):
    late = "which did not end within 0.2 s; wait longer with --timeout, or timeout= of OnDemand"
    expected = [f"device {other} may keep this one waiting for {what}, {late}" for other in (1, 0)]
    assert pools(2).run(waits_alone, place) == expected


def threads_of_calls(_rank):
    """Which threads the library is called on, and whether they are the caller's."""
    memory, seen = NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem((1, 1))), []

    def noted(call):
        def noting(*args):
            seen.append(threading.get_ident())
            return call(*args)

        return noting

    for name in (*TOGETHER, "synchronize", "meet"):
        setattr(memory.library, name, noted(getattr(memory.library, name)))
    memory.allocate(1024)
    memory.meet(MAIN)
    memory.close()
    return len(seen), len(set(seen)), threading.get_ident() in seen


def test_one_thread_starts_nvshmem_and_ends_it(pools):
    """As NVSHMEM asks for; and CUDA's present device, which the start sets, is each thread's own."""
    for calls, threads, callers in pools(2).run(threads_of_calls):
        assert (calls >= 4, threads, callers) == (True, 1, False)


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


def test_what_waits_for_peers_is_called_past_nvshmem4py(monkeypatch):
    """Which keeps the interpreter's lock meanwhile. Freed is what was allocated."""
    called, memory = [], torch.zeros(64, dtype=torch.uint8)

    def entry(name, result=None):
        return lambda *args: called.append((name, *args)) or result

    names = ("nvshmem_free", "nvshmemx_hostlib_finalize", "nvshmemx_barrier_all_on_stream")
    host = SimpleNamespace(**{name: entry(name) for name in names})
    host.nvshmem_malloc = entry("nvshmem_malloc", memory.data_ptr())
    monkeypatch.setattr(nvshmem_library, "host_library", lambda: host)
    monkeypatch.setattr(nvshmem_library.Nvshmem, "_stream", 7)
    library = object.__new__(nvshmem_library.Nvshmem)
    library.synchronize, library.process = lambda: called.append("synchronize"), Process()
    library._bytes = lambda address, nbytes: memory[:nbytes] if address == memory.data_ptr() else None
    mine = library.allocate(48)
    library.meet()
    library.stop(mine)
    before = [("nvshmem_malloc", 48), ("nvshmemx_barrier_all_on_stream", 7), "synchronize"]
    assert called == [*before, ("nvshmem_free", memory.data_ptr()), ("nvshmemx_hostlib_finalize",)]
    host.nvshmem_malloc = lambda _: None
    with pytest.raises(InputError, match="NVSHMEM has no 48 bytes; use more devices"):
        library.allocate(48)
