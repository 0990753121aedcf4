"""Backend nvshmem on a GPU that two processes share: the same parity as with the fake. Not run yet.

Inside one GPU all is near; a library that hides addresses has every byte fetched and sent by NVSHMEM.
"""

import os

import pytest
import torch
from teams import file_of, minibatch

from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.library import DeviceNvshmem, Nvshmem
from odc_engine.doctor.probes.nvshmem_host import ENVIRONMENT
from odc_engine.job import job_of
from odc_engine.runs import launch, verify

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


class Apart:
    """No peer has an address."""

    def mapped(self, mine, device):  # noqa: ARG002
        return None


class HostApart(Apart, Nvshmem):
    pass


class DeviceApart(Apart, DeviceNvshmem):
    pass


def verified(host, job, library):
    os.environ.update(ENVIRONMENT)
    nvshmem_library.Nvshmem = library
    verify._verify_device(host, job, False)


@pytest.mark.parametrize("library", [Nvshmem, HostApart, DeviceApart])
@pytest.mark.parametrize("sync", ["on-demand", "collective", "deferred"])
def test_gradients_equal_one_process(library, sync):
    counts = (3, 1) if sync == "on-demand" else (2, 2)
    schedules = [minibatch(counts), minibatch(counts)]
    job = job_of(file_of(*schedules), sync=sync, backend="nvshmem", accumulate="slots", timeout=60.0)
    assert launch.run(verified, 2, 120.0, job, library) == 0


@pytest.mark.parametrize("library", [Nvshmem, HostApart, DeviceApart])
def test_gradients_equal_one_process_in_nodes_of_one_device(library):
    """What goes between nodes is fetched by the library, whether there is an address or not."""
    hybrid = {"sharding": "hybrid", "devices_per_node": 1}
    job = job_of(file_of(*[minibatch((3, 1))] * 2), sync="on-demand", backend="nvshmem", timeout=60.0, **hybrid)
    assert launch.run(verified, 2, 120.0, job, library) == 0


def test_atomic_sums_through_peers_addresses():
    job = job_of(file_of(minibatch((3, 1))), sync="on-demand", backend="nvshmem", timeout=60.0)
    assert launch.run(verified, 2, 120.0, job, Nvshmem) == 0
