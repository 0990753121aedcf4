"""Waiting for streams that a device was given work on, and how far lanes came where they stand still."""

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


def followed(monkeypatch, lanes, looks):
    """A stream that is done with its marks, by a clock of which each look takes a part of the limit."""
    clock, every, marks, stream = iter(range(10_000)), Milestones(), [Mark(each) for each in looks], Stream()
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
    monkeypatch.setattr(streams, "_cuda", FakeCuda)
    place = StreamPlace(torch.device("cpu"), [Stream() for _ in range(3)])
    with place.working():
        place.mark()
        for _ in range(2):
            place.lane("gather").give(lambda: None)
    assert place._milestones._told() == "compute has done 0 of 1, gather has done 0 of 2"
    place.finish()
    assert place._milestones._told() == "nothing was marked"
