"""NVSHMEM with two processes on one GPU: its own calls, and gradients."""

import os

import jobs
import pytest
import torch
from ranks import on_ranks

from odc_engine.job import job_of

pytestmark = [pytest.mark.gpu, pytest.mark.limit(26), pytest.mark.usefixtures("two_here")]
N = 1 << 20
# One GPU cannot be bound twice to a multicast object, and a machine may have no network card.
ENVIRONMENT = {"NVSHMEM_DISABLE_NVLS": "1", "NVSHMEM_REMOTE_TRANSPORT": "none", "NVSHMEM_SYMMETRIC_SIZE": "256M"}


@pytest.fixture
def two_here(gpu, transfers, monkeypatch):  # noqa: ARG001
    pytest.importorskip("nvshmem.core")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def by_the_host(rank):
    """Whether each call moved the other's values."""
    import nvshmem.core as nvshmem

    from odc_engine.backends.nvshmem import library

    torch.cuda.set_device(0)
    library.start(gpu=0)
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
    nvshmem.barrier_all(stream)  # after the last access of anybody
    torch.cuda.synchronize()
    for tensor in (mine, got, sent):  # freeing is collective, so in one order everywhere
        nvshmem.free_tensor(tensor)
    library.stop()
    return right


def test_host(seconds):
    """Does NVSHMEM start with two processes on one GPU, and copy on a stream?"""
    assert on_ranks(by_the_host, 2, seconds) == [dict.fromkeys(("get", "put", "peer tensor"), True)] * 2


def verified(host, job, way):
    """As the backend does it, with addresses of each other, or without."""
    from odc_engine.backends.nvshmem import library
    from odc_engine.runs import start, verify

    class Apart(library.Nvshmem):
        """No peer has an address."""

        def mapped(self, mine, device):  # noqa: ARG002
            return None

    os.environ.update(ENVIRONMENT)
    if way == "far":
        library.__dict__["Nvshmem"] = Apart  # what the backend looks up when it is made
    start.on_process(host, job, verify._verify, (False,))


SLOTS = [(way, sync, "slots") for way in ("near", "far") for sync in ("on-demand", "collective")]


@pytest.mark.parametrize(("way", "sync", "accumulate"), [("near", "on-demand", "locked"), *SLOTS])
def test_near_and_far(seconds, way, sync, accumulate):
    """Do two processes over nvshmem get the gradients of one, near and far?"""
    from odc_engine.runs import launch

    counts = (3, 0) if sync == "on-demand" else (2, 2)
    file = jobs.file_of(counts, counts)
    job = job_of(file, sync=sync, backend="nvshmem", accumulate=accumulate, timeout=seconds)
    assert launch.run(verified, 2, job.timeout, job, way) == 0
