"""A thread whose device is streams, on fake ones: whatever is read has been written, whatever is overwritten has been
read, by what streams were told to wait for and not by the luck of who was quicker."""

import weakref
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest.mock import Mock

import fake_cuda
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from teams import gradients, job_for, minibatch, recorded

from odc_engine import Packed
from odc_engine.devices import perform
from odc_engine.devices.equipment import Pass
from odc_engine.devices.run_device import as_block
from odc_engine.devices.thread import ThreadDevice
from odc_engine.errors import EngineError
from odc_engine.places import milestones, streams
from odc_engine.places.events import EventPool
from odc_engine.places.lanes import DONE
from odc_engine.places.milestones import Milestones
from odc_engine.places.place import Buffers
from odc_engine.places.streams import StreamPlace
from odc_engine.runs import launch_threads
from odc_engine.runs.verify import reference_gradients, relative_errors

BOUND = 1e-5
SYNCS = ("collective", "deferred", "on-demand")


@dataclass(frozen=True)
class Access:
    """A piece of work that reads or writes some memory, and all that is known to be done before it."""

    what: object  # the memory
    writes: bool
    stream: int
    number: int
    known: dict
    told: str

    def before(self, other):
        return other.known.get(self.stream, 0) >= self.number


class Log:
    """Everything that a device does to memory that more than one stream touches, in the order of being given."""

    def __init__(self, patch):
        self.found, self._names = [], {}
        patch.setattr(streams, "_cuda", fake_cuda.FakeCuda())
        self._patched(patch)

    def note(self, told, *, reads=(), writes=()):
        stream, number, known = fake_cuda.current().work()
        self.found += [Access(what, False, stream, number, known, told) for what in reads]
        self.found += [Access(what, True, stream, number, known, told) for what in writes]

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

        def take(buffers, *given, real=Buffers.take):
            """Memory that is new here may have been anything before, to whatever compute was given until now."""
            before, known = fake_cuda.current().work(), set(self._names)
            found, free = real(buffers, *given)
            if log.buffer(found) not in known:
                log.found.append(Access(log.buffer(found), True, *before, "what was there before"))
            return found, free

        patch.setattr(Buffers, "take", take)
        patch.setattr(perform.Performance, "_compute", compute)

    def watch(self, watched):
        """Gathers, pushes and publishing."""
        arena = watched.parts.arena

        def noted(owner, name, accesses):
            real = getattr(owner, name)

            def call(*given):
                self.note(name, **accesses(*given))
                return real(*given)

            setattr(owner, name, call)

        noted(arena, "gather", lambda unit, out: {"reads": [("weights", unit)], "writes": [self.buffer(out)]})
        noted(arena, "push", lambda unit, given: {"reads": [self.buffer(given)], "writes": [("sum", unit)]})
        noted(arena, "gradients", lambda unit: {"reads": [("sum", unit)]})
        noted(arena, "clear", lambda unit: {"writes": [("sum", unit)]})
        noted(watched, "_lay_out", lambda: {"writes": [("weights", unit) for unit in range(len(arena.units))]})

    def races(self):
        """Pairs of accesses to the same memory, one of them a write, of which neither is known to come first."""
        of = {}
        for access in self.found:
            of.setdefault(access.what, []).append(access)
        for same in of.values():
            for i, one in enumerate(same):
                for other in same[i + 1 :]:
                    apart = one.stream != other.stream and (one.writes or other.writes)
                    if apart and not (one.before(other) or other.before(one)):
                        yield f"{one.told} and {other.told} of {one.what}"


def performed(job, work, log=None):
    """What `work(device)` returns on a device whose place is made of fake streams."""
    found = []

    def perform_(memory):
        with ThreadDevice(job, memory) as device:
            device.meet()
            if log is not None:
                log.watch(device)
            found.append(work(device))

    assert launch_threads.run(perform_, 1, 20.0, places=[fake_cuda.place()]) == 0
    return found[0]


@st.composite
def jobs(draw):
    sync = draw(st.sampled_from(SYNCS))
    every = [minibatch([draw(st.integers(1, 3))]) for _ in range(draw(st.integers(1, 2)))]
    return deep(job_for(*every, sync=sync), draw(st.sampled_from(["none", "fsdp2", "1", "3"])))


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
        performed(job, recorded, log)
        assert {access.told for access in log.found} >= {
            "gather",
            "push",
            "backward",
            "forward",
            "gradients",
            "_lay_out",
        }
        assert not list(log.races())


def without_waits_of_transfers(patch, give=streams.StreamLane.give):
    patch.setattr(streams.StreamLane, "give", lambda lane, transfer, _after=(): give(lane, transfer))


def without_waits_of_compute(patch):
    patch.setattr(perform.Performance, "_follow", lambda *_: None)


def without_waits_for_memory(patch):
    take = Buffers.take
    patch.setattr(Buffers, "take", lambda *given: (take(*given)[0], DONE))


@pytest.mark.parametrize("broken", [without_waits_of_transfers, without_waits_of_compute, without_waits_for_memory])
def test_a_missing_wait_is_found(broken, monkeypatch):
    log = Log(monkeypatch)
    broken(monkeypatch)
    performed(deep(job_for(minibatch((3,)), minibatch((2,))), "3"), recorded, log)
    assert list(log.races())


@pytest.mark.parametrize("sync", SYNCS)
def test_gradients_and_times_are_those_of_the_program(sync, monkeypatch):
    Log(monkeypatch)
    job = job_for(minibatch((2,)), sync=sync)

    program, (asked, had) = job.program_of(job.schedules[0]), as_block(performed(job, recorded))
    assert np.isfinite(asked).all()
    assert (had >= asked).all()
    for i, step in enumerate(program.steps):
        for needed in step.after:
            assert (asked[i] >= had[needed]).all(), (i, needed)
    mine, reference = performed(job, gradients), reference_gradients(job, job.schedules[0])
    assert max(relative_errors(mine, reference).values()) <= BOUND


@pytest.mark.parametrize("sync", SYNCS)
def test_a_run_makes_no_more_marks_once_it_has_made_enough(sync, monkeypatch):
    """Of both kinds: those that streams wait for, and those that times are read from."""
    made, fake = Mock(wraps=fake_cuda.Event), fake_cuda.FakeCuda()
    monkeypatch.setattr(fake, "Event", made)
    monkeypatch.setattr(streams, "_cuda", fake)

    def work(device):
        counts = []
        for number in range(len(device.job.schedules)):
            device.minibatch(number)
            device.meet()
            counts.append(made.call_count)
            device.meet()
        return counts

    job = job_for(*[minibatch([1], [8])] * 6, sync=sync)
    first, *_, before, last = performed(job, work)
    assert 0 < first <= before == last


def test_a_lane_is_the_same_whenever_it_is_asked_for(monkeypatch):
    """Its transfers stay in order, and no stream is taken anew."""
    monkeypatch.setattr(streams, "_cuda", fake_cuda.FakeCuda())
    place = fake_cuda.place()
    gather, push = place.lane("gather"), place.lane("push")
    assert place.lane("gather") is gather
    assert place.lane("push") is push
    assert gather is not push
    with pytest.raises(ValueError, match="nodes"):
        place.lane("nodes")


@given(st.lists(st.integers(-1, 5)))
def test_marks_that_are_held_are_not_used_again_and_no_more_are_made_than_were_held(steps):
    """-1: one more mark; else that mark of those held is let go."""
    made, held, most = [], [], 0

    def make():
        made.append(SimpleNamespace(record=lambda: None))  # on whatever stream
        return made[-1]

    events = EventPool(make)
    for step in steps:
        if step < 0:
            held.append(events.record())
        elif held:
            del held[step % len(held)]
        most = max(most, len(held))
        assert len({id(mark.event) for mark in held}) == len(held)
    assert len(made) == most


def test_nothing_keeps_the_activation_that_the_head_has_read():
    """A gradient of its size comes next: with both, a device would need room for one more."""
    batch = Packed(torch.zeros(2), torch.zeros(2), torch.ones(2), (2,))
    there = Pass(batch, None, activation=torch.ones(3))
    watched = weakref.ref(there.activation)
    assert there.last_activation().tolist() == [1.0, 1.0, 1.0]
    assert watched() is None


# Waiting for streams that a device was given work on, and how far lanes came where they stand still.


class Mark(fake_cuda.Event):
    """Reached at so many looks."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def query(self):
        self.looks -= 1
        return self.looks < 0


def followed(monkeypatch, lanes, looks):
    """A stream that is done with its marks, by a clock of which each look takes a part of the limit."""
    clock, every, marks, stream = iter(range(10_000)), Milestones(), [Mark(each) for each in looks], fake_cuda.Stream()
    monkeypatch.setattr(milestones, "STILL", 0.05)
    monkeypatch.setattr(milestones.time, "monotonic", lambda: 0.02 * next(clock))
    for lane, mark in zip(lanes, marks, strict=True):
        every.add(lane, mark)
    stream.query = lambda: all(mark.looks < 0 for mark in marks)
    every.follow([stream])
    return every._told()


def test_streams_that_stand_still_are_told_with_how_far_each_lane_came(monkeypatch):
    with pytest.raises(EngineError, match="compute has done 1 of 2, push has done 0 of 1"):
        followed(monkeypatch, ["compute", "compute", "push"], [2, 10**9, 10**9])


def test_streams_that_move_are_waited_for_however_long(monkeypatch):
    """Each mark takes less than the limit, all of them much more. The next wait begins anew."""
    assert followed(monkeypatch, ["gather"] * 40, [1] * 40) == "nothing was marked"


def test_a_place_s_transfers_and_compute_are_marked(monkeypatch):
    monkeypatch.setattr(streams, "_cuda", fake_cuda.FakeCuda)
    place = StreamPlace(torch.device("cpu"), [fake_cuda.Stream() for _ in range(3)])
    with place.working():
        place.mark()
        for _ in range(2):
            place.lane("gather").give(lambda: None)
    assert place._milestones._told() == "compute has done 0 of 1, gather has done 0 of 2"
    place.finish()
    assert place._milestones._told() == "nothing was marked"
