"""What probes do on a GPU, done on a CPU as far as that goes: they would report the right bytes as right, and wrong
ones as wrong."""

import os

import pytest
import shards
import torch
import torch.distributed as dist

from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.doctor.probes import gloo, kernels, peers
from odc_engine.doctor.probes.ranks import on_ranks

needs_triton = pytest.mark.skipif(
    not shards.triton_is_there(), reason="needs Triton: pip install 'odcsim[gpu]' -c constraints.txt"
)


def shared(nbytes, group, _device):
    """Arenas as the backends for GPUs make them, of memory that processes share."""
    memory = SharedMemory(group)
    memory.allocate(nbytes)
    return [memory.view(rank) for rank in range(memory.size)], memory


def apart(nbytes, group, _device):
    """Arenas that nobody else sees."""
    return [torch.zeros(nbytes + 16, dtype=torch.uint8)[:nbytes] for _ in range(group.size())], None


def exercised(rank, arenas):
    shards.interpreted()
    return peers.work(rank, arenas, "cpu", 300)


@needs_triton
def test_processes_that_reach_each_other_pass(pools):
    assert pools(2).run(exercised, shared) == [{"gather": True, "add": True}] * 2


@needs_triton
def test_processes_that_do_not_reach_each_other_fail(pools):
    assert pools(2).run(exercised, apart) == [{"gather": False, "add": False}] * 2


def checked(_rank):
    shards.interpreted()
    return kernels.checked(300, "cpu")


@needs_triton
def test_kernels_that_move_the_right_bytes_pass(pools):
    assert pools(1).run(checked) == [dict.fromkeys(("write", "gather", "add", "total"), True)]


def over_gloo(rank):
    return gloo.work(rank, "cpu")


def test_gloo_on_a_cpu(pools):
    for found in pools(2).run(over_gloo):
        assert {name: right for name, (right, _) in found.items()} == {"gather": True, "reduce-scatter": True}


def summed(rank, fail):
    if rank == 1 and fail == "raises":
        raise ValueError("of\nrank 1")
    if rank == 1 and fail == "ends":
        os._exit(3)
    total = torch.tensor(1.0 + rank)
    if not fail:
        dist.all_reduce(total)
    return total.item()


def test_processes_of_a_probe_meet_and_answer():
    assert on_ranks(summed, 2, 60.0, "") == [3.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "message"), [("raises", "process 1: ValueError: of rank 1"), ("ends", "process 1 ended without an answer")]
)
def test_a_process_that_fails_is_named(fail, message):
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        on_ranks(summed, 2, 60.0, fail)
