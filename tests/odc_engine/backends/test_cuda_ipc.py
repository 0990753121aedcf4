"""The backend for GPUs as far as a CPU can show it: refused without one, its arena and a whole training step moved by
interpreted kernels. On a GPU nobody has run it yet."""

import pytest
import shards
import torch
import work
from teams import file_of, minibatch
from work import Case

from odc_engine.backends import cuda_ipc
from odc_engine.backends.base import MAIN
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.cli import main
from odc_engine.fsdp import on_demand as fsdp
from odc_engine.memory.arena import UnitShape
from odc_engine.places.place import HOST, Processor
from odc_engine.places.streams import StreamLane
from odc_engine.runs.verify import BOUND
from odcsim import schedule
from odcsim.recipe import ACCUMULATE

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
UNITS = [
    UnitShape("a", 37, 37, torch.float32),
    UnitShape("b", 5, 0, torch.bfloat16),
    UnitShape("c", 64, 64, torch.bfloat16),
]


@no_gpu
@pytest.mark.parametrize("command", ["run", "verify"])
def test_without_a_gpu_it_is_refused_in_a_line(command, tmp_path, capsys):
    path = tmp_path / "s.jsonl"
    schedule.write(file_of(minibatch((2, 1))), path)
    output = ["-o", str(tmp_path / "t.npz")] if command == "run" else []
    assert main([command, str(path), "--sync", "on-demand", "--backend", "cuda_ipc", *output]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("odc_engine: error: backend cuda_ipc needs NVIDIA GPUs, and torch ")
    assert "use --backend shm" in line


@no_gpu
def test_as_a_library_it_is_refused_too(pools):
    for found in pools(2).run(refused_as_a_library):
        assert found.startswith("backend cuda_ipc needs NVIDIA GPUs")


def refused_as_a_library(_):
    return work.told(lambda: cuda_ipc.ROW.memory(SharedMemory(timeout=30.0), torch.device("cuda", 0)))


def on_arena(rank, accumulate):
    """Two minibatches; nothing of the last unit is pushed in the second, and nothing but by device 0 of the first."""
    shards.interpreted()
    from odc_engine.kernels.transfers import Launch
    from odc_engine.memory.gpu import GpuArena

    memory = SharedMemory(timeout=30.0)
    arena = GpuArena(memory, UNITS, accumulate, launch=Launch(block=16, programs=3))
    found = []
    for number in range(2):
        for unit, shape in enumerate(UNITS):
            arena.weights(rank, unit).copy_(torch.arange(shape.gather) % 50 + 50 * rank + number)
            arena.clear(unit)
        memory.meet(MAIN)
        wholes = [torch.empty(2 * shape.gather, dtype=shape.dtype) for shape in UNITS]
        for unit, whole in enumerate(wholes):
            arena.gather(unit, whole)
        for unit, shape in enumerate(UNITS):
            for _ in range(0 if number and (unit == 2 or rank) else 2):
                arena.push(unit, torch.arange(2.0 * shape.push) + rank)
        arena.complete()
        memory.meet(MAIN)
        found.append(([whole.tolist() for whole in wholes], [arena.gradients(unit).tolist() for unit in range(3)]))
        memory.meet(MAIN)
    memory.close()
    return found


@needs_triton
@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_its_arena_gathers_and_sums_like_the_other(pools, accumulate):
    for rank, minibatches in enumerate(pools(2).run(on_arena, accumulate)):
        for number, (wholes, sums) in enumerate(minibatches):
            for unit, shape in enumerate(UNITS):
                expected = torch.cat([torch.arange(shape.gather) % 50 + 50 * d + number for d in range(2)])
                assert wholes[unit] == expected.to(shape.dtype).tolist()
                own = torch.arange(2.0 * shape.push)[rank * shape.push : (rank + 1) * shape.push]
                pushed = 2 * (own + own + 1) if not number else 2 * own if unit != 2 else 0 * own
                assert sums[unit] == pushed.tolist()


def trained(rank, case):
    """Gradients of a model under FSDP2 whose transfers are kernels, each done where it is given."""
    shards.interpreted()
    from odc_engine.memory.gpu import GpuArena

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp, "arena_on", GpuArena)
        patch.setattr(Processor, "lane", lambda place, _: StreamLane(place.device))
        return work.gradients(rank, case)


@needs_triton
@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_a_model_under_fsdp2_gets_the_gradients_of_one_process(pools, accumulate):
    case = Case((2, 1)).but(accumulate=accumulate)
    expected = work.reference(case)
    assert max(work.error(found, expected) for found in pools(2).run(trained, case)) <= BOUND


def test_a_cpu_keeps_its_lanes_and_clock():
    lane = HOST.lane("test")
    assert not isinstance(lane, StreamLane)
    lane.close()
