"""What some devices cannot do over their links all refuse in the same words, before anything is allocated."""

import pytest
import torch
import work
from fake_devices import launched, model_on
from fake_nvshmem import FakeNvshmem

from odc_engine.backends import links
from odc_engine.backends.cuda_ipc import memory as of_ipc
from odc_engine.backends.links import GpuLink, GpuLinks, PlacedGpu
from odc_engine.backends.nvshmem import memory as of_nvshmem
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.memory.arena import UnitShape
from odc_engine.memory.arenas import arena_on, memory_for
from odcsim.errors import InputError

UNITS = [UnitShape("u", 64, 64, torch.float32)]
NVLINK, PCIE, APART, UNKNOWN = GpuLink(True, True), GpuLink(True, False), GpuLink(False, False), GpuLink(None, None)


def refused(rank, ways, accumulate, shared=()):
    """What an arena's maker is told, and whether memory was asked for by then. `ways`: links of pairs that differ from
    NVLink, known to the first of each pair alone. `shared`: devices on device 0's GPU."""
    gpus = [PlacedGpu(str(0 if number in shared else number), "uuid", "NVIDIA") for number in range(2)]
    given = []

    def provided(nbytes, *_):
        given.append(nbytes)
        raise InputError("memory was asked for", fix="this is a test")

    with launched(rank, 2, "torchrun", "all"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "seen", gpus.__getitem__)
        patch.setattr(
            links, "link", lambda one, other: ways.get((one.bus, other.bus), NVLINK) if one != other else NVLINK
        )
        patch.setattr(of_ipc, "provided", provided)

        def made():
            memory = memory_for(model_on(rank), 30.0, None)
            try:
                arena_on(memory, UNITS, accumulate, None)
            finally:
                memory.close()

        return work.told(made), len(given)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (PCIE, "the link from GPU 1 of device 1 to GPU 0 of device 0 has no native atomics, without which sums are"),
        (UNKNOWN, "nothing says whether the link from GPU 1 of device 1 to GPU 0 of device 0 has native atomics"),
    ],
)
def test_locked_sums_are_refused_by_all_where_one_link_would_lose_them(pools, way, why):
    """Sums of device 0 alone would be wrong, and device 1 alone knows of the link."""
    first, second = pools(2).run(refused, {("1", "0"): way}, "locked")
    assert first == second
    assert first[0].startswith(why)
    assert first[0].endswith('use --accumulate slots (of OnDemand: accumulate="slots")')
    assert first[1] == 0


@pytest.mark.parametrize(
    ("ways", "accumulate", "shared"),
    [({}, "locked", ()), ({("1", "0"): PCIE}, "slots", ()), ({("1", "0"): PCIE}, "locked", (1,))],
)
def test_slots_need_no_atomics_nor_does_one_gpu(pools, ways, accumulate, shared):
    """Nor do two processes on one, whatever its link to others."""
    for told, given in pools(2).run(refused, ways, accumulate, shared):
        assert (told, given) == ("memory was asked for; this is a test", 1)


@pytest.mark.parametrize("accumulate", ["locked", "slots"])
def test_gpus_without_a_way_are_refused_by_all_before_memory_is_asked_for(pools, accumulate):
    first, second = pools(2).run(refused, {("0", "1"): APART}, accumulate)
    assert first == second
    assert first[0].startswith("GPU 0 of device 0 does not reach the memory of GPU 1 of device 1; ")
    assert first[1] == 0


def over_nvshmem(rank, way, machines):
    """As processes with a GPU each whose links are asked once there are arenas: whom a device has addresses of is known
    then."""
    gpus = [PlacedGpu(str(number), "uuid", "NVIDIA") for number in range(2)]
    told = GpuLinks(tuple(gpus), ((NVLINK, way), (way, NVLINK)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_nvshmem, "asked", lambda *_: told)
        memory = NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem(machines))
        found = work.told(lambda: arena_on(memory, UNITS, "locked", 1 if machines == (1, 1) else None))
        elsewhere = memory.elsewhere(1 - rank)
        memory.close()
        return found, elsewhere


def test_nvshmem_s_near_devices_are_asked_as_well(pools):
    for found, elsewhere in pools(2).run(over_nvshmem, PCIE, (2,)):
        assert found.startswith("the link from GPU 0 of device 0 to GPU 1 of device 1 has no native atomics")
        assert elsewhere


def test_what_lies_beyond_a_network_is_no_link(pools):
    for found, _ in pools(2).run(over_nvshmem, PCIE, (1, 1)):
        assert found == "nothing was refused"
