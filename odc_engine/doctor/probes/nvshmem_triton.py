"""Triton kernels that get and put through NVSHMEM's device library, told of by the hook on loading."""

import os

from odc_engine.doctor.probes.base import FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.nvshmem_host import ENVIRONMENT, N, stopped
from odc_engine.doctor.probes.ranks import on_ranks

BLOCK = 1 << 16  # bytes that a program moves


def probe(hearing: Hearing) -> Answer:
    from odc_engine.backends.nvshmem import library as nvshmem_library

    os.environ.update(ENVIRONMENT)
    versions = nvshmem_library.versions()
    if not versions.agree:
        return Answer(FAILED, f"bitcode {versions.bitcode or 'of no wheel'} and host library {versions.host} differ")
    found = on_ranks(_work, 2, hearing.patience, versions.path)
    wrong = [name for name in found[0] if not all(each[name] for each in found)]
    if wrong:
        return Answer(FAILED, f"wrong: {', '.join(wrong)}")
    return Answer(OK, f"NVSHMEM {versions.host}: kernels get and put between 2 processes on one GPU, all right")


def _work(rank: int, bitcode: str) -> dict[str, bool]:
    import nvshmem.bindings
    import nvshmem.core as nvshmem
    import torch

    from odc_engine.backends.nvshmem import library as nvshmem_library
    from odc_engine.kernels import remote

    torch.cuda.set_device(0)
    nvshmem_library.start(gpu=0)
    modules: list[int] = []

    def initialize(module: int) -> None:
        nvshmem.bindings.cumodule_init(module)
        modules.append(module)

    remote.initialize_on_load(initialize)
    mine, got, sent = (nvshmem.tensor((N,), dtype=torch.float32) for _ in range(3))
    stream, other = nvshmem.NvshmemStream(torch.cuda.current_stream()), 1 - rank
    values = torch.arange(N, device="cuda", dtype=torch.float32)
    mine.copy_(values + rank)
    nvshmem.barrier_all(stream)
    for kernel, target in ((remote.get_nbi, got), (remote.put_nbi, sent)):
        kernel[(4 * N // BLOCK,)](target, mine, 4 * N, other, block=BLOCK, extern_libs={remote.LIBRARY: bitcode})
    remote.settle(bitcode)
    nvshmem.barrier_all(stream)
    right = {
        "get, then quiet": torch.equal(got, values + other),
        "put, then quiet": torch.equal(sent, values + other),
        "modules that were told": len(modules) == 3,
    }
    for module in modules:
        nvshmem.bindings.cumodule_finalize(module)
    stopped([mine, got, sent], stream)
    return right
