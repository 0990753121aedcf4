"""gloo with CUDA tensors: a baseline for several processes on one GPU, if a slow one."""

from collections.abc import Callable
from typing import Any

from odc_engine.doctor.probes.base import CPU, FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.ranks import on_ranks

N = 1 << 20


def probe(hearing: Hearing) -> Answer:
    try:
        found = on_ranks(work, 2, hearing.patience, hearing.size("cuda:0", CPU))
    except RuntimeError as error:
        return Answer(OK, f"gloo refuses: {error}"[:300], {"refused": True})
    wrong = [name for name in found[0] if not all(each[name][0] for each in found)]
    seconds = {name: max(each[name][1] for each in found) for name in found[0]}
    told = ", ".join(f"{name} {2 * 4 * N / s / 1e9:.2f} GB/s" for name, s in seconds.items())
    if wrong:
        return Answer(FAILED, f"wrong bytes: {', '.join(wrong)}", {"seconds": seconds})
    return Answer(OK, f"2 processes, {8 * N >> 20} MB: {told}", {"seconds": seconds})


def work(rank: int, where: str) -> dict[str, tuple[bool, float]]:
    import time

    import torch

    from odc_engine.fsdp.collective import all_gather, reduce_scatter

    mine = torch.full((N,), 1.0 + rank, device=where)
    whole, part = torch.empty(2 * N, device=where), torch.empty(N, device=where)
    right = torch.cat([torch.full((N,), 1.0 + r, device=where) for r in range(2)])
    moves: tuple[tuple[str, Callable[[], Any], torch.Tensor, torch.Tensor], ...] = (
        ("gather", lambda: all_gather(whole, mine), whole, right),
        ("reduce-scatter", lambda: reduce_scatter(part, right), part, 2 * mine),
    )
    found = {}
    for name, move, got, wanted in moves:
        move()
        _done(where)
        start = time.perf_counter()
        move()
        _done(where)
        found[name] = (torch.equal(got, wanted), time.perf_counter() - start)
    return found


def _done(where: str) -> None:
    import torch

    if where != CPU:
        torch.cuda.synchronize()
