"""NCCL with two processes on one GPU: refused by most versions, and that must not be a hang."""

from odc_engine.doctor.probes.base import FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.ranks import on_ranks


def probe(hearing: Hearing) -> Answer:
    import torch

    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    try:
        sums = on_ranks(_work, 2, hearing.patience)
    except RuntimeError as error:
        return Answer(OK, f"NCCL {version} refuses: {error}"[:300], {"nccl": version, "refused": True})
    except TimeoutError as error:
        return Answer(FAILED, f"NCCL {version} hangs: {error}", {"nccl": version})
    good = sums == [3.0, 3.0]
    return Answer(OK if good else FAILED, f"NCCL {version} takes two processes, sum {sums}", {"nccl": version})


def _work(rank: int) -> float:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    group = dist.new_group(backend="nccl")
    value = torch.tensor(1.0 + rank, device="cuda")
    dist.all_reduce(value, group=group)
    return float(value)
