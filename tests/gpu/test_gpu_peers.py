"""What processes that share one GPU's memory do to each other, whatever they reach it by."""

import time

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.limit(30)]
N, SMALL = 1_000_003, 301  # elements of a shard, of which nothing is aligned
ROUNDS = 10
MOVED = 1 << 20  # elements through gloo


def meet(where):
    if where != "cpu":
        torch.cuda.synchronize()
    dist.barrier()


def in_shared_memory(nbytes, group, _device):
    """Arenas of a CPU that stands in."""
    from odc_engine.backends.shm.memory import SharedMemory

    memory = SharedMemory(group)
    memory.allocate(nbytes)
    return [memory.view(rank) for rank in range(memory.size)], memory


def gathers_and_adds(rank, arenas, where, n):
    """Whether all have everybody's bytes, and sums to which all have added at once."""
    from odc_engine.kernels import transfers

    device = torch.device(where)
    stride = -(-4 * n // 16) * 16
    every, keep = arenas(2 * stride, dist.group.WORLD, device)
    table = transfers.table([arena.data_ptr() for arena in every], device)
    weights, sums = (every[rank][at : at + 4 * n].view(torch.float32) for at in (0, stride))
    base = (torch.arange(n, device=device) % 1000).float()
    weights.copy_(base + rank)
    sums.zero_()
    meet(where)
    out = torch.empty(len(every) * n, device=device)
    transfers.gather(transfers.Shards(table, rank, 0, n), out, torch.float32)
    for _ in range(ROUNDS):
        transfers.add(transfers.Shards(table, rank, stride, n), base.repeat(len(every)) + rank)
    meet(where)
    gathered = torch.cat([base + peer for peer in range(len(every))])
    right = {
        "gather": torch.equal(out, gathered),
        "add": torch.equal(sums, ROUNDS * (len(every) * base + sum(range(len(every))))),
    }
    meet(where)  # nobody lets go of what another still reads
    del every, keep
    return right


@pytest.mark.usefixtures("transfers")
@pytest.mark.parametrize("processes", [2, 4])
def test_symmetric_memory(device, cpu, seconds, processes):
    """Do processes on one GPU reach each other through torch's symmetric memory?"""
    from odc_engine.backends.cuda_ipc.symmetric import arenas

    how = (in_shared_memory, device, SMALL) if cpu else (arenas, "cuda:0", N)
    assert on_ranks(gathers_and_adds, processes, seconds, *how) == [{"gather": True, "add": True}] * processes


@pytest.mark.usefixtures("transfers", "gpu")
def test_ipc_handles(seconds):
    """Do processes on one GPU reach each other through CUDA IPC handles?"""
    from odc_engine.backends.cuda_ipc.legacy_ipc import arenas

    assert on_ranks(gathers_and_adds, 2, seconds, arenas, "cuda:0", N) == [{"gather": True, "add": True}] * 2


def over_gloo(rank, where):
    """Whether each way to move was right, and its seconds."""
    from odc_engine.fsdp.collective import all_gather, reduce_scatter

    mine = torch.full((MOVED,), 1.0 + rank, device=where)
    whole, part = torch.empty(2 * MOVED, device=where), torch.empty(MOVED, device=where)
    right = torch.cat([torch.full((MOVED,), 1.0 + r, device=where) for r in range(2)])
    found = {}
    for name, move, got, wanted in (
        ("gather", lambda: all_gather(whole, mine), whole, right),
        ("reduce-scatter", lambda: reduce_scatter(part, right), part, 2 * mine),
    ):
        move()
        meet(where)
        start = time.perf_counter()
        move()
        meet(where)
        found[name] = (torch.equal(got, wanted), time.perf_counter() - start)
    return found


def test_gloo(device, seconds, note):
    """Does gloo move CUDA tensors?"""
    found = on_ranks(over_gloo, 2, seconds, "cpu" if device == "cpu" else "cuda:0")
    note(gb_per_second={name: 8 * MOVED / max(each[name][1] for each in found) / 1e9 for name in found[0]})
    assert all(right for each in found for right, _ in each.values())


def over_nccl(rank):
    torch.cuda.set_device(0)
    group = dist.new_group(backend="nccl")
    value = torch.tensor(1.0 + rank, device="cuda")
    dist.all_reduce(value, group=group)
    return float(value)


@pytest.mark.usefixtures("gpu")
def test_nccl_on_one_gpu(seconds, note):
    """Does NCCL take two processes on one GPU, or refuse? It may not hang."""
    note(nccl=".".join(map(str, torch.cuda.nccl.version())))
    try:
        sums = on_ranks(over_nccl, 2, seconds)
    except RuntimeError as error:
        note(refused=str(error)[:300])
    else:
        assert sums == [3.0, 3.0]
