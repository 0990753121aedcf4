"""Launches of kernels as runs make them, compiled for a GPU that is not here."""

import fake_cuda
import pytest
import torch
from fake_gpu import fake_gpu
from teams import job_for, minibatch

from odc_engine.devices import thread
from odc_engine.devices.thread import ThreadDevice
from odc_engine.kernels import device, transfers
from odc_engine.kernels.pause import pause
from odc_engine.memory.gpu import GpuArena
from odc_engine.places import streams
from odc_engine.runs import launch_threads

pytestmark = pytest.mark.skipif(
    not hasattr(device.gather, "params"), reason="kernels are interpreted in this process (TRITON_INTERPRET)"
)
KERNELS = device.gather, device.add, device.write, device.total, device.meet, pause


@pytest.fixture(autouse=True, scope="module")
def fresh(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def gather(rank=0, devices=3):
    arenas = [torch.zeros(32) for _ in range(devices)]
    place = transfers.Shards(transfers.table([arena.data_ptr() for arena in arenas]), rank, 0, 32)
    transfers.gather(place, torch.zeros(devices * 32), torch.float32)


def test_all_devices_and_meetings_have_the_same_code():
    """Triton would compile numbers into it that are 1, or a multiple of 16."""
    with fake_gpu(*KERNELS) as gpu:
        for rank in (0, 1, 2, 16):
            gather(rank, devices=17)
        gather(devices=1)
        arenas = [torch.zeros(32) for _ in range(2)]
        flags = transfers.Shards(transfers.table([arena.data_ptr() for arena in arenas]), 1, 16, 2)
        for count in (1, 2, 16, 33):
            transfers.meet(flags, count, 60_000_000, torch.zeros(2, dtype=torch.int32))
    assert gpu.loaded == ["gather", "meet"]
    assert gpu.launched == ["gather"] * 5 + ["meet"] * 4


@pytest.mark.parametrize("n", [64, 37])
def test_nothing_is_left_to_compile_for_a_later_push(n):
    """Of any microbatch, to all owners or to itself, wherever its part begins."""
    with fake_gpu(*KERNELS) as gpu:
        transfers.compile_writes(n, torch.bfloat16, torch.device("cpu"))
        known = list(gpu.loaded)
        arenas, gradients = [torch.zeros(n) for _ in range(3)], torch.zeros(3 * n, dtype=torch.bfloat16)
        addresses = [arena.data_ptr() for arena in arenas]
        for first in (True, False):
            everybody, own = (transfers.Shards(transfers.table(some), 0, 0, n) for some in (addresses, addresses[:1]))
            transfers.write(everybody, gradients, first=first)
            for owner in range(3):
                transfers.write(own, gradients[owner * n :][:n], first=first)
    assert gpu.loaded == known


def test_a_run_on_streams_launches_kernels_that_can_be_compiled_each_once(monkeypatch):
    monkeypatch.setattr(streams, "_cuda", fake_cuda.FakeCuda())
    monkeypatch.setattr(thread, "arena_on", lambda *given: GpuArena(*given))
    job = job_for(minibatch((2,)), emulate=True, gpu="a100")

    def perform(memory):
        with ThreadDevice(job, memory) as device:
            device.minibatch(0)

    with fake_gpu(*KERNELS) as gpu:
        assert launch_threads.run(perform, 1, 20.0, places=[fake_cuda.place()]) == 0
        kinds = sum(len(kernel.device_caches[0][0]) for kernel in KERNELS if kernel.device_caches)
    assert set(gpu.launched) == {"pause", "add"}  # gathers are copies
    assert len(gpu.loaded) == kinds
