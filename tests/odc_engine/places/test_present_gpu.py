"""Parameters are on the fourth GPU and the first is present to the caller: whatever is asked of CUDA is asked of the
fourth, and the first stays present."""

import pytest
import torch
from fake_devices import FakeTorchCuda, install

from odc_engine.kernels import calls, copies
from odc_engine.places import streams
from odc_engine.places.streams import StreamLane, WholeGpu

FOURTH = torch.device("cuda", 3)


@pytest.fixture
def cuda(monkeypatch):
    fake = install(monkeypatch, FakeTorchCuda(4))
    yield fake
    assert fake.asked
    assert {number for _, number in fake.asked} == {3}
    assert (fake.present, fake.moves) == (0, [])


class OnFourth(torch.Tensor):
    """Taken for a tensor of that GPU."""

    device, is_cuda = FOURTH, True


def test_a_place_marks_and_waits_on_its_gpu(cuda):
    place = WholeGpu(FOURTH)
    place.mark().check()
    place.finish()
    assert {call for call, _ in cuda.asked} == {"record", "current_stream", "synchronize"}


@pytest.mark.parametrize("name", ["gather", "nodes"])
def test_lanes_keep_order_on_it(cuda, name):
    lane = WholeGpu(FOURTH).lane(name)
    for _ in range(2):
        lane.give(lambda: None).check()
    lane.drain()
    assert isinstance(lane, StreamLane)
    assert ("record", 3) in cuda.asked


def test_times_are_taken_on_it(cuda):
    clock = WholeGpu(FOURTH).clock()
    clock.start()
    clock.tick()
    assert [call for call, _ in cuda.asked].count("record") == 2


def test_emulated_compute_takes_its_time_there(cuda, monkeypatch):
    monkeypatch.setattr(streams, "pause", lambda _: cuda.synchronize())
    WholeGpu(FOURTH).wait(0.1)


def test_copies_go_to_its_stream(cuda):
    del cuda
    assert copies._stream(torch.zeros(4).as_subclass(OnFourth)) == 103


def test_kernels_are_launched_there(cuda):
    class Kernel:
        def __getitem__(self, grid):
            return lambda *_, **__: cuda.synchronize()

    tensor = torch.zeros(4).as_subclass(OnFourth)
    for _ in range(2):  # the first launch of a kind has a way of its own
        calls.call(Kernel(), (1,), 3, tensor)
    assert cuda.asked == [("synchronize", 3)] * 2
