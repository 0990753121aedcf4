"""Threads whose devices are streams, on fake ones: whatever is read has been written, whatever is overwritten has been
read, by what streams were told to wait for and not by the luck of who was quicker."""

import threading
from dataclasses import dataclass, replace

import fake_cuda
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teams import job_for, minibatch

from odc_engine.backends.base import MAIN
from odc_engine.backends.threads.memory import ThreadMemory
from odc_engine.devices import perform
from odc_engine.devices.run_device import as_block
from odc_engine.devices.thread import ThreadDevice
from odc_engine.places import streams
from odc_engine.places.lanes import DONE
from odc_engine.places.place import Buffers
from odc_engine.runs import launch_threads
from odc_engine.runs.verify import reference_gradients, relative_errors

BOUND = 1e-5
SYNCS = ("collective", "deferred", "on-demand")


@dataclass(frozen=True)
class Access:
    """A piece of work that reads or writes some memory, and all that is known to be done before it."""

    what: object  # the memory
    writes: bool
    adds: bool  # a sum that many may write at once
    stream: int
    number: int
    known: dict
    told: str

    def before(self, other):
        return other.known.get(self.stream, 0) >= self.number


class Log:
    """Everything that all devices do to memory that more than one stream touches, in the order of being given."""

    def __init__(self, patch):
        self.found, self._lock, self._names = [], threading.Lock(), {}
        patch.setattr(streams, "_cuda", fake_cuda.FakeCuda())
        self._patched(patch)

    def note(self, told, *, reads=(), writes=(), adds=()):
        stream, number, known = fake_cuda.current().work()
        with self._lock:
            for each, memory in enumerate((reads, writes, adds)):
                for what in memory:
                    self.found.append(Access(what, each > 0, each == 2, stream, number, known, told))

    def buffer(self, tensor):
        """A name for memory. It is kept, so that no other memory gets the name; the engine must not count on that."""
        self._names[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def _patched(self, patch):
        log, real = self, perform.Performance._compute

        def compute(self, number, step):
            what = self.program.durations[step.duration][0]
            read = [log.buffer(self._whole[step.unit])] if step.kind == "compute" and step.unit in self._whole else []
            sums = [] if step.unit not in self._sums else [log.buffer(self._sums[step.unit])]
            if step.kind == "compute":
                log.note(what, reads=read, writes=sums)
            real(self, number, step)
            if step.kind == "compute" and not sums and step.unit in self._sums:
                log.note(f"{what} done", writes=[log.buffer(self._sums[step.unit])])

        def meet(self, room, real=ThreadMemory.meet):
            if room == MAIN:
                self.place.finish()
                fake_cuda.host.known = fake_cuda.merged(*self.team.swap(self.rank, MAIN, fake_cuda.host.known))
            else:
                real(self, room)

        def exchange(self, value, real=ThreadMemory.exchange):
            self.meet(MAIN)
            found = real(self, value)
            self.meet(MAIN)
            return found

        def take(buffers, *given, real=Buffers.take):
            """Memory that is new here may have been anything before, to whatever compute was given until now."""
            before, known = fake_cuda.current().work(), set(self._names)
            found, free = real(buffers, *given)
            if log.buffer(found) not in known:
                log.found.append(Access(log.buffer(found), True, False, *before, "what was there before"))
            return found, free

        patch.setattr(Buffers, "take", take)
        patch.setattr(perform.Performance, "_compute", compute)
        patch.setattr(ThreadMemory, "meet", meet)
        patch.setattr(ThreadMemory, "exchange", exchange)

    def watch(self, watched):
        """Gathers, pushes, exchanges between nodes and publishing of one device."""
        arena, rank, everybody = watched.parts.arena, watched.rank, range(watched.memory.size)
        gather, push, gradients, clear = arena.gather, arena.push, arena.gradients, arena.clear
        sum_nodes, fetch, lay_out = arena.sum_nodes, arena.fetch, watched._lay_out
        units, others = range(len(arena.units)), arena._counterparts()

        def in_node(what, unit):
            """Everybody's part, where this device finds it."""
            return [(what, arena._stand_in(owner), owner, unit) for owner in everybody]

        def gathered(unit, out):
            self.note("gather", reads=in_node("weights", unit), writes=[self.buffer(out)])
            gather(unit, out)

        def pushed(unit, given):
            self.note("push", reads=[self.buffer(given)], adds=in_node("sum", unit))
            push(unit, given)

        def summed(unit):
            self.note("settle", reads=[("sum", rank, rank, unit)])
            return gradients(unit)

        def cleared(unit):
            self.note("clear", writes=[("sum", rank, owner, unit) for owner in (rank, *others)])
            clear(unit)

        def added():
            own = [("sum", rank, rank, unit) for unit in units]
            self.note("sum nodes", reads=[("sum", d, rank, unit) for d in others for unit in units], writes=own)
            sum_nodes()

        def fetched():
            there = [("weights", device, device, unit) for device in others for unit in units]
            here = [("weights", rank, device, unit) for device in others for unit in units]
            self.note("fetch", reads=there, writes=here)
            fetch()

        def laid_out():
            self.note("publish", writes=[("weights", rank, rank, unit) for unit in units])
            lay_out()

        arena.gather, arena.push, arena.gradients, arena.clear = gathered, pushed, summed, cleared
        arena.sum_nodes, arena.fetch, watched._lay_out = added, fetched, laid_out

    def races(self):
        """Pairs of accesses to the same memory, one of them a write, of which neither is known to come first."""
        of = {}
        for access in self.found:
            of.setdefault(access.what, []).append(access)
        for same in of.values():
            for i, one in enumerate(same):
                for other in same[i + 1 :]:
                    apart = one.stream != other.stream and (one.writes or other.writes)
                    if apart and not (one.adds and other.adds) and not (one.before(other) or other.before(one)):
                        yield f"{one.told} and {other.told} of {one.what}"


def performed(job, work, log=None):
    """What `work(device)` returns on each device whose place is made of fake streams."""
    devices, found = len(job.schedules[0].devices), {}

    def perform_(memory):
        with ThreadDevice(job, memory) as device:
            device.meet()
            if log is not None:
                log.watch(device)
            found[memory.rank] = work(device)

    assert launch_threads.run(perform_, devices, 20.0, places=fake_cuda.places(devices)) == 0
    return [found[rank] for rank in range(devices)]


def minibatches(device):
    return [device.minibatch(number) for number in range(len(device.job.schedules))]


@st.composite
def jobs(draw):
    sync = draw(st.sampled_from(SYNCS))
    devices, per_node = draw(st.sampled_from([(1, None), (2, None), (3, None), (2, 1)]))
    hybrid = {} if per_node is None else {"sharding": "hybrid", "devices_per_node": per_node}
    every = []
    for _ in range(draw(st.integers(1, 2))):
        counts = draw(st.lists(st.integers(0, 2), min_size=devices, max_size=devices).filter(any))
        every.append(minibatch(counts if sync == "on-demand" else [max(counts)] * devices))
    return deep(job_for(*every, sync=sync, **hybrid), draw(st.sampled_from(["none", "fsdp2", "1", "3"])))


def deep(job, prefetch):
    """More layers than a gather may run ahead, so that memory is used again while others still compute."""
    return replace(job, cost=replace(job.cost.by(prefetch=prefetch), model=replace(job.cost.model, layers=5)))


@settings(max_examples=12, deadline=None)
@given(jobs())
def test_nothing_is_left_to_luck(job):
    """Every gathered weight is read after its copy and overwritten after its last reader; every push reads gradients
    after backward; sums are read after every push, and weights change after every gather."""
    with pytest.MonkeyPatch.context() as patch:
        log = Log(patch)
        performed(job, minibatches, log)
        assert {access.told for access in log.found} >= {"gather", "push", "backward", "forward", "settle", "publish"}
        assert not list(log.races())


@pytest.mark.parametrize("sync", ["on-demand", "collective"])
def test_nodes_exchange_what_is_laid_out_and_summed(sync, monkeypatch):
    """A shard is fetched after it was laid out and before it changes, a sum read after all pushes to it."""
    log = Log(monkeypatch)
    job = job_for(minibatch((1, 1, 1, 1)), minibatch((1, 1, 1, 1)), sync=sync, sharding="hybrid", devices_per_node=2)
    performed(job, minibatches, log)
    assert {access.told for access in log.found} >= {"fetch", "sum nodes", "clear"}
    assert not list(log.races())


def without_waits_of_transfers(patch):
    give = streams.StreamLane.give
    patch.setattr(streams.StreamLane, "give", lambda lane, transfer, _after=(): give(lane, transfer))


def without_waits_of_compute(patch):
    patch.setattr(perform.Performance, "_follow", lambda *_: None)


def without_waits_for_memory(patch):
    take = Buffers.take
    patch.setattr(Buffers, "take", lambda *given: (take(*given)[0], DONE))


def without_finishing(patch):
    patch.setattr(streams.StreamPlace, "finish", lambda _: None)


@pytest.mark.parametrize(
    "broken", [without_waits_of_transfers, without_waits_of_compute, without_waits_for_memory, without_finishing]
)
def test_a_missing_wait_is_found(broken, monkeypatch):
    log = Log(monkeypatch)
    broken(monkeypatch)
    performed(deep(job_for(minibatch((3, 2)), minibatch((2, 3))), "3"), minibatches, log)
    assert list(log.races())


@pytest.mark.parametrize("sync", SYNCS)
def test_gradients_and_times_are_those_of_the_program(sync, monkeypatch):
    Log(monkeypatch)
    counts = (2, 0, 1) if sync == "on-demand" else (2, 2, 2)
    job = job_for(minibatch(counts), minibatch(counts), sync=sync)

    def both(device):
        record = device.minibatch(0)
        device.gradients(job.schedules[1])
        return record, device.whole_gradients()

    program = job.program_of(job.schedules[0])
    records, gradients = zip(*performed(job, both), strict=True)
    asked, had = as_block(list(records))
    assert np.isfinite(asked).all()
    assert (had >= asked).all()
    for i, step in enumerate(program.steps):
        for needed in step.after:
            assert (asked[i] >= had[needed])[step.microbatch < np.array(counts)].all(), (i, needed)
    assert all(given.keys() == gradients[0].keys() for given in gradients)


def test_gradients_equal_one_process(monkeypatch):
    Log(monkeypatch)
    job = job_for(minibatch((2, 1, 0)))

    def gradients(device):
        device.gradients(job.schedules[0])
        return device.whole_gradients()

    reference = reference_gradients(job, job.schedules[0])
    for mine in performed(job, gradients):
        assert max(relative_errors(mine, reference).values()) <= BOUND


@pytest.mark.parametrize("sync", SYNCS)
def test_a_run_makes_no_more_marks_once_it_has_made_enough(sync, monkeypatch):
    """Of both kinds: those that streams wait for, and those that times are read from."""
    made = [0]

    class Counted(fake_cuda.Event):
        def __init__(self, enable_timing=False):
            made[0] += 1
            super().__init__(enable_timing)

    fake = fake_cuda.FakeCuda()
    monkeypatch.setattr(fake, "Event", Counted)
    monkeypatch.setattr(streams, "_cuda", fake)

    def work(device):
        counts = []
        for number in range(len(device.job.schedules)):
            device.minibatch(number)
            device.meet()
            counts.append(made[0])
            device.meet()
        return counts

    job = job_for(*[minibatch([1, 1], [8, 8])] * 6, sync=sync)
    first, *_, before, last = performed(job, work)[0]
    assert 0 < first <= before == last


def test_a_lane_is_the_same_whenever_it_is_asked_for(monkeypatch):
    """Its transfers stay in order, and no stream is taken anew."""
    monkeypatch.setattr(streams, "_cuda", fake_cuda.FakeCuda())
    [place] = fake_cuda.places(1)
    gather, push = place.lane("gather"), place.lane("push")
    assert place.lane("gather") is gather
    assert place.lane("push") is push
    assert gather is not push
    with pytest.raises(ValueError, match="a lane for nodes where 3 streams compute and do gather, push"):
        place.lane("nodes")
