"""What links between GPUs do is asked of the driver, or of NVML where a process does not see its peer's GPU; what
nobody says is not taken for granted. What some cannot do all refuse in the same words, before memory is asked for."""

import os
from contextlib import closing
from dataclasses import astuple
from unittest.mock import Mock

import pytest
import torch
import work
from fake_devices import launched, model_on
from fake_nvshmem import FakeNvshmem
from seen_links import every_way, from_first

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


HIDDEN = {"CUDA_VISIBLE_DEVICES": "1"}  # as where a launcher shows each process a GPU of its own: NVML is asked
FOUND = {
    "NVLink, PCIe, nothing": ([1, 2, 3], {"devices": 4, "p2p": "-Aa-;A---;a---;----"}, [NVLINK, PCIE, APART]),
    "atomics of some operations": ([1], {"p2p": "-p;p-"}, [PCIE]),
    "an older driver knows of no half atomics": ([1], {"driver": 12080}, [NVLINK]),
    "NVML, with atomics": ([0], {"p2p": "-A;A-", **HIDDEN}, [GpuLink(None, True)]),
    "NVML, without": ([0], {"p2p": "-a;a-", **HIDDEN}, [GpuLink(None, False)]),
    "NVML, out of reach": ([0], {"p2p": "--;--", **HIDDEN}, [APART]),
    "no NVML": ([0], {"refuse": "nvmlInit_v2=999", **HIDDEN}, [UNKNOWN]),
    "the driver does not say": ([1], {"refuse": "cuDeviceGetP2PAttribute=801"}, [GpuLink(True, None)]),
    "the driver knows no such thing": ([1], {"refuse": "cuDeviceGetP2PAttribute=1"}, [GpuLink(True, None)]),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_a_link_is_what_the_driver_says(fake_libraries, what):
    others, machine, expected = FOUND[what]
    answered = fake_libraries.ask(from_first, others, **{"devices": 2, **machine}).value
    assert [tuple(each) for each in answered] == [astuple(each) for each in (NVLINK, *expected)]


def test_a_pair_is_named_by_the_places_of_its_gpus(fake_libraries):
    torn, why, apart = fake_libraries.ask(every_way, 3, devices=3, p2p="-AA;A-a;Aa-").value
    assert (torn, apart) == ("", True)
    assert [place in why for place in ("0000:1B:00.0", "0000:1C:00.0", "0000:1D:00.0")] == [False, True, True]
    torn, *_ = fake_libraries.ask(every_way, 2, devices=2, p2p="--;--").value
    assert [place in torn for place in ("0000:1B:00.0", "0000:1C:00.0", " MIG")] == [True, True, False]
    torn, *_ = fake_libraries.ask(every_way, 2, devices=2, mig=1).value  # slices have one bus
    assert "(MIG, 0000:1B:00.0 and 0000:1B:00.0)" in torn


def test_slices_of_two_gpus_reach_no_other_whatever_the_gpus_do():
    """What a library says of whole GPUs does not hold for them."""
    one, other = (PlacedGpu(bus, bus, "NVIDIA Fake MIG 1g.10gb") for bus in ("0000:1B:00.0", "0000:1C:00.0"))
    assert links.link(one, other) == links.link(PlacedGpu("0000:1B:00.0", "a", "NVIDIA Fake"), other) == APART


def test_only_whom_a_device_reaches_by_addresses_counts():
    one, other = (PlacedGpu(f"{number}", f"{number}", "") for number in range(2))
    far = GpuLinks((one, other), ((NVLINK, APART), (APART, NVLINK)))
    assert far.why_not_add((range(1), range(1, 2))) == ""
    assert far.why_not_add((range(2), range(1, 2))) == far.why_not_add() != ""
    together = GpuLinks((one, one), ((links.link(one, one),) * 2,) * 2)  # devices on one GPU need no link
    together.refuse_torn()
    assert (together.why_not_add(), together.elsewhere(0, 1)) == ("", False)


def test_without_a_driver_nothing_is_known():
    links._driver.cache_clear()
    if os.environ.get("CUDA_VISIBLE_DEVICES") or links._driver() is not None:
        pytest.skip("there is a driver here")
    assert links.seen(0) == PlacedGpu()
    assert links._link_of((PlacedGpu(),) * 2, 0, 1) == UNKNOWN


# All devices together.


def an_arena(rank, ways, accumulate, shared=()):
    """What an arena's maker is told, and whether memory was asked for by then. `ways`: links of pairs that differ from
    NVLink, known to the first of each pair alone. `shared`: devices on device 0's GPU."""
    gpus = [PlacedGpu(str(0 if number in shared else number), "uuid", "NVIDIA") for number in range(2)]
    provided = Mock(side_effect=InputError("memory was asked for", fix="this is a test"))
    with launched(rank, 2, "torchrun", "all"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "seen", gpus.__getitem__)
        patch.setattr(links, "link", lambda one, other: ways.get((one.bus, other.bus), NVLINK))
        patch.setattr(of_ipc, "provided", provided)

        def made():
            with closing(memory_for(model_on(rank), 30.0, None)) as memory:
                arena_on(memory, UNITS, accumulate, None)

        return work.told(made), provided.called


@pytest.mark.parametrize(
    ("ways", "how", "asked"),
    [
        ({("1", "0"): PCIE}, ("locked",), False),  # sums of device 0 alone would be wrong, and device 1 alone knows it
        ({("1", "0"): UNKNOWN}, ("locked",), False),
        ({("0", "1"): APART}, ("locked",), False),
        ({("0", "1"): APART}, ("slots",), False),
        ({}, ("locked",), True),
        ({("1", "0"): PCIE}, ("slots",), True),  # slots need no atomics
        ({("1", "0"): PCIE}, ("locked", (1,)), True),  # nor do two processes on one GPU, whatever its link to others
    ],
)
def test_what_a_link_cannot_do_all_refuse_alike_before_memory_is_asked_for(pools, ways, how, asked):
    first, second = pools(2).run(an_arena, ways, *how)
    assert first == second
    assert first[1] == asked
    assert first[0].startswith("memory was asked for") is asked


def over_nvshmem(rank, machines):
    """Whom a device has addresses of is known once there are arenas: then links are asked, of those alone."""
    gpus = [PlacedGpu(str(number), "uuid", "NVIDIA") for number in range(2)]
    told = GpuLinks(tuple(gpus), ((NVLINK, PCIE), (PCIE, NVLINK)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_nvshmem, "asked", lambda *_: told)
        memory = NvshmemMemory(SharedMemory(timeout=30.0), FakeNvshmem(machines))
        found = work.told(lambda: arena_on(memory, UNITS, "locked", 1 if machines == (1, 1) else None))
        elsewhere = memory.elsewhere(1 - rank)
        memory.close()
        return found == "nothing was refused", elsewhere


@pytest.mark.parametrize(("machines", "fine"), [((2,), False), ((1, 1), True)])
def test_nvshmem_s_near_devices_are_asked_as_well_and_no_others(pools, machines, fine):
    assert pools(2).run(over_nvshmem, machines) == [(fine, True)] * 2
