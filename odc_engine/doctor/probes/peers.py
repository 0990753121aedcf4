"""What processes that share a GPU's memory do to each other, whatever they reach it by. On a CPU they share its own."""

from collections.abc import Callable
from typing import Any

from odc_engine.doctor.probes.base import CPU, FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.ranks import on_ranks

Arenas = Callable[..., tuple[list[Any], Any]]
N, SMALL = 1_000_003, 301  # elements of a shard, of which nothing is aligned
ROUNDS = 10


def symmetric(hearing: Hearing) -> Answer:
    """Through torch's symmetric memory."""
    from odc_engine.backends.cuda_ipc.symmetric import arenas

    return exercised(hearing, arenas, hearing.size((2, 4), (2,)))


def legacy(hearing: Hearing) -> Answer:
    """Through CUDA IPC handles."""
    from odc_engine.backends.cuda_ipc.legacy_ipc import arenas

    return exercised(hearing, arenas, (2,))


def exercised(hearing: Hearing, arenas: Arenas, ranks: tuple[int, ...]) -> Answer:
    """Gather, and add to each other at once, with so many processes in turn."""
    wrong = []
    where, n = hearing.size("cuda:0", CPU), hearing.size(N, SMALL)
    for count in ranks:
        found = on_ranks(work, count, hearing.patience, hearing.size(arenas, in_shared_memory), where, n)
        hearing.note(**{f"processes_{count}": found[0]})
        wrong += [f"{what} of {count} processes" for what in found[0] if not all(each[what] for each in found)]
    if wrong:
        return Answer(FAILED, f"wrong bytes: {', '.join(wrong)}")
    return Answer(OK, f"{' and '.join(map(str, ranks))} processes gather and add up by atomics, all right")


def in_shared_memory(nbytes: int, group: Any, _device: Any) -> tuple[list[Any], Any]:
    """Arenas of a CPU that stands in."""
    from odc_engine.backends.shm.memory import SharedMemory

    memory = SharedMemory(group)
    memory.allocate(nbytes)
    return [memory.view(rank) for rank in range(memory.size)], memory


def work(rank: int, arenas: Arenas, where: str, n: int) -> dict[str, bool]:
    import torch
    import torch.distributed as dist

    from odc_engine.kernels import transfers

    world, device = dist.group.WORLD, torch.device(where)
    assert world is not None
    stride = -(-4 * n // 16) * 16
    every, keep = arenas(2 * stride, world, device)
    table = transfers.table([arena.data_ptr() for arena in every], device)
    weights, sums = (every[rank][at : at + 4 * n].view(torch.float32) for at in (0, stride))
    base = (torch.arange(n, device=device) % 1000).float()
    weights.copy_(base + rank)
    sums.zero_()
    _meet(where)
    out = torch.empty(len(every) * n, device=device)
    transfers.gather(transfers.Shards(table, rank, 0, n), out, torch.float32)
    for _ in range(ROUNDS):
        transfers.add(transfers.Shards(table, rank, stride, n), base.repeat(len(every)) + rank)
    _meet(where)
    expected = ROUNDS * (len(every) * base + sum(range(len(every))))
    gathered = torch.cat([base + peer for peer in range(len(every))])
    right = {"gather": torch.equal(out, gathered), "add": torch.equal(sums, expected)}
    _meet(where)  # nobody lets go of what another still reads
    del every, keep
    return right


def _meet(where: str) -> None:
    import torch
    import torch.distributed as dist

    if where != CPU:
        torch.cuda.synchronize()
    dist.barrier()
