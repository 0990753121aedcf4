"""Waiting for streams that a device was given work on, and what is said of those that stand still."""

import pytest
import torch
from fake_cuda import Event, FakeCuda, Stream

from odc_engine.errors import EngineError
from odc_engine.places import milestones, streams
from odc_engine.places.milestones import Milestones
from odc_engine.places.streams import StreamPlace


class Mark(Event):
    """Reached at so many looks."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def query(self):
        self.looks -= 1
        return self.looks < 0


class Slow(Stream):
    """Done when its last mark is."""

    def __init__(self, *marks):
        super().__init__()
        self.marks = marks

    def query(self):
        return all(mark.looks < 0 for mark in self.marks)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(milestones, "STILL", 0.05)


def test_streams_that_stand_still_are_told_with_how_far_each_lane_came():
    every, marks = Milestones(), [Mark(2), Mark(10**9), Mark(10**9)]
    every.add("compute", marks[0])
    every.add("compute", marks[1])
    every.add("push", marks[2])
    told = r"streams stand still for 0.05 s: compute has done 1 of 2, push has done 0 of 1"
    with pytest.raises(EngineError, match=told):
        every.follow([Slow(*marks)])


def test_streams_that_move_are_waited_for_however_long(monkeypatch):
    """Each mark takes less than the limit, all of them much more."""
    clock = iter(range(10_000))
    monkeypatch.setattr(milestones.time, "monotonic", lambda: 0.02 * next(clock))
    every, marks = Milestones(), [Mark(1) for _ in range(40)]
    for mark in marks:
        every.add("gather", mark)
    every.follow([Slow(*marks)])
    assert every._told() == "nothing was marked"  # the next wait begins anew


def test_a_place_s_transfers_and_compute_are_marked(monkeypatch):
    monkeypatch.setattr(streams, "_cuda", FakeCuda)
    place = StreamPlace(torch.device("cpu"), [Stream() for _ in range(3)])
    with place.working():
        place.mark()
        place.lane("gather").give(lambda: None)
        place.lane("gather").give(lambda: None)
    assert place._milestones._told() == "compute has done 0 of 1, gather has done 0 of 2"
    place.finish()
    assert place._milestones._told() == "nothing was marked"
