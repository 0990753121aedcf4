"""NVSHMEM with two processes on one GPU: peers' tensors, copies on a stream, and a barrier of all."""

import os
from typing import Any

from odc_engine.doctor.probes.base import FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.ranks import on_ranks

N = 1 << 20
# One GPU cannot be bound twice to a multicast object, and a machine may have no network card.
ENVIRONMENT = {"NVSHMEM_DISABLE_NVLS": "1", "NVSHMEM_REMOTE_TRANSPORT": "none", "NVSHMEM_SYMMETRIC_SIZE": "256M"}


def probe(hearing: Hearing) -> Answer:
    from odc_engine.backends.nvshmem import library as nvshmem_library

    os.environ.update(ENVIRONMENT)
    host, _ = nvshmem_library.versions()
    found = on_ranks(_work, 2, hearing.patience)
    wrong = [name for name in found[0] if not all(each[name] for each in found)]
    if wrong:
        return Answer(FAILED, f"wrong bytes: {', '.join(wrong)}", {"host": host})
    return Answer(OK, f"NVSHMEM {host}: {', '.join(found[0])} of 2 processes on one GPU, all right")


def _work(rank: int) -> dict[str, bool]:
    import nvshmem.core as nvshmem
    import torch

    from odc_engine.backends.nvshmem import library as nvshmem_library

    torch.cuda.set_device(0)
    nvshmem_library.start(gpu=0)
    mine, got, sent = (nvshmem.tensor((N,), dtype=torch.float32) for _ in range(3))
    stream, other = nvshmem.NvshmemStream(torch.cuda.current_stream()), 1 - rank
    values = torch.arange(N, device="cuda", dtype=torch.float32)
    mine.copy_(values + rank)
    nvshmem.barrier_all(stream)
    nvshmem.get(got, mine, remote_pe=other, stream=stream)
    nvshmem.put(sent, mine, remote_pe=other, stream=stream)
    nvshmem.barrier_all(stream)
    right = {
        "get": torch.equal(got, values + other),
        "put": torch.equal(sent, values + other),
        "peer tensor": torch.equal(nvshmem.get_peer_tensor(mine, other), values + other),
    }
    stopped([mine, got, sent], stream)
    return right


def stopped(tensors: list[Any], stream: Any) -> None:
    """Freeing is collective, so in one order everywhere, and after the last access of anybody."""
    import nvshmem.core as nvshmem
    import torch

    from odc_engine.backends.nvshmem import library as nvshmem_library

    nvshmem.barrier_all(stream)
    torch.cuda.synchronize()
    for tensor in tensors:
        nvshmem.free_tensor(tensor)
    nvshmem_library.stop()
