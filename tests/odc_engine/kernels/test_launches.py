"""Launches of kernels as runs make them, of models of all sizes, compiled for a GPU that is not here with the very
types that a launch gives: each once, and every number in them fits its type."""

from itertools import product

import fake_cuda
import pytest
import torch
from fake_gpu import fake_gpu
from meta_arena import kernels, minibatch, units_of
from teams import job_for
from teams import minibatch as counted
from ttir import overflows, products

from odc_engine.devices import thread
from odc_engine.devices.thread import ThreadDevice
from odc_engine.kernels import device, transfers
from odc_engine.kernels.pause import pause
from odc_engine.memory.gpu import GpuArena
from odc_engine.places import streams
from odc_engine.runs import launch_threads
from odcsim import catalog

pytestmark = pytest.mark.skipif(
    not hasattr(device.gather, "params"), reason="kernels are interpreted in this process (TRITON_INTERPRET)"
)
WAYS = ("locked", False), ("slots", False), ("slots", True)  # how gradients are added up, and in two nodes
LARGE, LARGEST = "qwen2.5-7b", "llama-4-maverick-17b-128e"  # roots of over 4 GB, and layers of 8 billion parameters


@pytest.fixture(autouse=True, scope="module")
def fresh(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(scope="module")
def gpu():
    """One for all, so that nothing is compiled twice."""
    with fake_gpu(*kernels()) as entered:
        yield entered


def launched(gpu, model, size, accumulate, nodes):
    gpu.launches.clear()
    units = units_of(catalog.model(model), size)
    minibatch(units, size - 1, size, accumulate, size // 2 if nodes else None)
    return list({(launch.source, tuple(launch.arguments.values())): launch for launch in gpu.launches}.values())


def hold(gpu, models, sizes):
    """Kernels that were launched: whatever they compute fits its type, and nothing is multiplied in 32 bits, where what
    grows with a unit would not fit sooner or later."""
    names = set()
    for model, size, (accumulate, nodes) in product(models, sizes, WAYS):
        for launch in [] if nodes and size % 2 else launched(gpu, model, size, accumulate, nodes):
            text = gpu.code(launch)["ttir"]
            found = overflows(text, launch.arguments, launch.programs) + products(text)
            assert not found, (model, size, accumulate, launch.name, launch.arguments)
            names.add(launch.name)
    return names


def test_whatever_a_kernel_computes_fits_its_type(gpu):
    assert hold(gpu, [LARGE], [4]) == {"gather", "add", "write", "total"}
    hold(gpu, [LARGEST], [2])


@pytest.mark.slow
@pytest.mark.drawn(0)
def test_whatever_a_kernel_computes_fits_its_type_for_every_model_of_the_catalogue(gpu):
    models = {name: catalog.model(name) for name in catalog.model_names()}
    unlike = {(model.root_parameters, model.layer_parameters): name for name, model in models.items()}
    assert hold(gpu, unlike.values(), range(2, 17)) == {"gather", "add", "write", "total"}


PROGRAM = """
%c4096_i32 = arith.constant 4096 : i32 loc(#loc1)
%c3_i32 = arith.constant 3 : i32
%0 = tt.get_program_id x : i32
%1 = tt.get_num_programs x : i32
scf.for %turn = %0 to %turns step %1  : i32 {
  %2 = arith.muli %turn, %c4096_i32 : i32
  %3 = tt.splat %2 : i32 -> tensor<16xi32>
  %4 = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
  %5 = arith.addi %3, %4 : tensor<16xi32>
  %6 = arith.extsi %stride : i32 to i64
  %7 = arith.muli %6, %6 : i64
  %8 = arith.muli %stride, %c3_i32 : i32
}
"""


@pytest.mark.parametrize(
    ("turns", "stride", "wrong"),
    [
        (1 << 19, 715827882, []),
        ((1 << 19) + 1, 1, ["%2", "%3", "%5"]),
        (1, 715827883, ["%8"]),
        ((1 << 31) - 2, 0, ["scf.for", "%2", "%3", "%5"]),
    ],
)
def test_what_does_not_fit_is_found(turns, stride, wrong):
    found = overflows(PROGRAM, {"turns": turns, "stride": stride, "table": None}, programs=4)
    assert [line.split()[0] for line in found] == wrong
    assert [line.split()[0] for line in products(PROGRAM)] == ["%2", "%8"]


# Each is compiled once.

KERNELS = device.gather, device.add, device.write, device.total, device.meet, pause


def place(arenas, rank, offset, n):
    return transfers.Shards(transfers.table([arena.data_ptr() for arena in arenas]), rank, offset, n)


def test_all_devices_and_meetings_have_the_same_code():
    """Triton would compile numbers into it that are 1, or a multiple of 16."""
    arenas = [torch.zeros(32) for _ in range(17)]
    with fake_gpu(*KERNELS) as gpu:
        for rank, devices in ((0, 17), (1, 17), (2, 17), (16, 17), (0, 1)):
            transfers.gather(place(arenas[:devices], rank, 0, 32), torch.zeros(devices * 32), torch.float32)
        for count in (1, 2, 16, 33):
            transfers.meet(place(arenas[:2], 1, 16, 2), count, 60_000_000, torch.zeros(2, dtype=torch.int32))
    assert gpu.loaded == ["gather", "meet"]
    assert gpu.launched == ["gather"] * 5 + ["meet"] * 4


@pytest.mark.parametrize("n", [64, 37])
def test_nothing_is_left_to_compile_for_a_later_push(n):
    """Of any microbatch, to all owners or to itself, wherever its part begins."""
    with fake_gpu(*KERNELS) as gpu:
        transfers.compile_writes(n, torch.bfloat16, torch.device("cpu"))
        known = list(gpu.loaded)
        arenas, gradients = [torch.zeros(n) for _ in range(3)], torch.zeros(3 * n, dtype=torch.bfloat16)
        everybody, own = place(arenas, 0, 0, n), place(arenas[:1], 0, 0, n)
        for first in (True, False):
            transfers.write(everybody, gradients, first=first)
            for owner in range(3):
                transfers.write(own, gradients[owner * n :][:n], first=first)
    assert gpu.loaded == known


def test_a_run_on_streams_launches_kernels_that_can_be_compiled_each_once(monkeypatch):
    monkeypatch.setattr(streams, "_cuda", fake_cuda.FakeCuda())
    monkeypatch.setattr(thread, "arena_on", lambda *given: GpuArena(*given))
    job = job_for(counted((2,)), emulate=True, gpu="a100")

    def perform(memory):
        with ThreadDevice(job, memory) as device:
            device.minibatch(0)

    with fake_gpu(*KERNELS) as gpu:
        assert launch_threads.run(perform, 1, 20.0, places=[fake_cuda.place()]) == 0
        kinds = sum(len(kernel.device_caches[0][0]) for kernel in KERNELS if kernel.device_caches)
    assert set(gpu.launched) == {"pause", "add"}  # gathers are copies
    assert len(gpu.loaded) == kinds
