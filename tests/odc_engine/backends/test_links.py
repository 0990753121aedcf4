"""What links between GPUs do is asked of the driver, or of NVML where a process does not see its peer's GPU, and what
nobody says is not taken for granted."""

import os
from dataclasses import astuple

import pytest

from odc_engine.backends import links
from odc_engine.backends.links import GpuLink, GpuLinks, PlacedGpu
from odcsim.errors import InputError

ALL = {"devices": 4}


def from_first(others):
    """What a process finds of its first GPU, and of its ways to GPUs on these buses."""
    mine = links.seen(0)
    there = [PlacedGpu(f"0000:{0x1B + number:02X}:00.0", f"uuid {number}", "NVIDIA Fake") for number in others]
    return [astuple(links.link(mine, one)) for one in [mine, *there]]


def every_way(count):
    """Between all GPUs that a process sees, with what follows from them."""
    gpus = [links.seen(number) for number in range(count)]
    found = GpuLinks(tuple(gpus), tuple(tuple(links.link(one, other) for other in gpus) for one in gpus))
    try:
        found.refuse_torn()
    except InputError as error:
        return [str(error), found.why_not_add(), found.elsewhere(0, 1)]
    return ["", found.why_not_add(), found.elsewhere(0, 1)]


def test_a_gpu_adds_to_itself_and_to_those_with_native_atomics(fake_libraries):
    """Of four: the first itself, one with NVLink, one over PCIe, one that it does not reach."""
    found = fake_libraries.ask(from_first, [1, 2, 3], **ALL, p2p="-Aa-;A---;a---;----").value
    assert found == [[True, True], [True, True], [True, False], [False, False]]


def test_atomics_of_some_operations_are_not_those_of_sums(fake_libraries):
    assert fake_libraries.ask(from_first, [1], devices=2, p2p="-p;p-").value[1] == [True, False]


def test_an_older_driver_knows_of_no_half_atomics(fake_libraries):
    assert fake_libraries.ask(from_first, [1], devices=2, driver=12080).value[1] == [True, True]


@pytest.mark.parametrize(("p2p", "adds"), [("-A;A-", True), ("-a;a-", False)])
def test_of_a_gpu_that_a_process_does_not_see_nvml_is_asked(fake_libraries, p2p, adds):
    """As where a launcher shows each process a GPU of its own."""
    answered = fake_libraries.ask(from_first, [0], devices=2, p2p=p2p, CUDA_VISIBLE_DEVICES="1")
    assert answered.value == [[True, True], [None, adds]]


def test_one_that_nvml_does_not_reach_is_not_reached(fake_libraries):
    answered = fake_libraries.ask(from_first, [0], devices=2, p2p="--;--", CUDA_VISIBLE_DEVICES="1")
    assert answered.value[1] == [False, False]


def test_without_nvml_nothing_is_known_of_it(fake_libraries):
    answered = fake_libraries.ask(from_first, [0], devices=2, CUDA_VISIBLE_DEVICES="1", refuse="nvmlInit_v2=999")
    assert answered.value[1] == [None, None]


@pytest.mark.parametrize("refuse", ["cuDeviceGetP2PAttribute=801", "cuDeviceGetP2PAttribute=1"])
def test_what_the_driver_does_not_say_is_not_known(fake_libraries, refuse):
    assert fake_libraries.ask(from_first, [1], devices=2, refuse=refuse).value[1] == [True, None]


def test_a_pair_over_pcie_is_named(fake_libraries):
    torn, why, apart = fake_libraries.ask(every_way, 3, devices=3, p2p="-AA;A-a;Aa-").value
    assert torn == ""
    assert why == (
        "the link from GPU 0000:1C:00.0 of device 1 to GPU 0000:1D:00.0 of device 2 has no native atomics, without "
        "which sums are lost"
    )
    assert apart


def test_gpus_apart_are_refused_by_their_places(fake_libraries):
    torn, *_ = fake_libraries.ask(every_way, 2, devices=2, p2p="--;--").value
    assert torn.startswith("GPU 0000:1B:00.0 of device 0 does not reach the memory of GPU 0000:1C:00.0 of device 1; ")
    assert "NCCL" in torn


def test_slices_of_a_gpu_are_refused_as_such(fake_libraries):
    """They have one bus, so that a place alone would take them for the same GPU."""
    torn, *_ = fake_libraries.ask(every_way, 2, devices=2, mig=1).value
    assert torn.startswith("devices 0 and 1 are on slices of GPUs (MIG, 0000:1B:00.0 and 0000:1B:00.0), which reach no")


def test_slices_of_two_gpus_reach_no_other_whatever_the_gpus_do():
    """What a library says of whole GPUs does not hold for them."""
    one, other = (PlacedGpu(bus, bus, "NVIDIA Fake MIG 1g.10gb") for bus in ("0000:1B:00.0", "0000:1C:00.0"))
    assert links.link(one, other) == GpuLink(False, False)


def test_devices_on_one_gpu_need_no_link():
    one = PlacedGpu("0000:1B:00.0", "a", "NVIDIA Fake")
    both = GpuLinks((one, one), ((links.link(one, one),) * 2,) * 2)
    both.refuse_torn()
    assert both.why_not_add() == ""
    assert not both.elsewhere(0, 1)


def test_only_whom_a_device_reaches_by_addresses_counts():
    own, apart = GpuLink(True, True), GpuLink(False, False)
    gpus = tuple(PlacedGpu(f"{number}", f"{number}", "") for number in range(2))
    far = GpuLinks(gpus, ((own, apart), (apart, own)))
    assert far.why_not_add((range(1), range(1, 2))) == ""
    assert far.why_not_add((range(2), range(1, 2))).startswith("the link from GPU 0 of device 0 to GPU 1 of device 1")


@pytest.mark.skipif(bool(os.environ.get("CUDA_VISIBLE_DEVICES")), reason="there may be a driver here")
def test_without_a_driver_nothing_is_known():
    links._driver.cache_clear()
    if links._driver() is not None:
        pytest.skip("there is a driver here")
    assert links.seen(0) == PlacedGpu()
    gpus = (PlacedGpu(),) * 2
    unknown = GpuLinks(gpus, tuple(tuple(links._link_of(gpus, own, other) for other in range(2)) for own in range(2)))
    unknown.refuse_torn()
    assert unknown.why_not_add().startswith("without cuda-bindings nothing says whether devices 0 and 1 can")
    assert unknown.elsewhere(0, 1)
