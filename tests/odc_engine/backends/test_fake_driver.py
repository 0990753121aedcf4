"""The driver without a GPU that other tests build on: cuda-bindings takes it for NVIDIA's, and it is as strict."""

from typing import Any

import pytest

MIG_BUS = "0000:1B:00.0"


def told(devices: int) -> dict[str, Any]:
    """What the real cuda-bindings are told of the machine, and of each pair of its GPUs."""
    from cuda.bindings import driver

    started, version, count = driver.cuInit(0), driver.cuDriverGetVersion(), driver.cuDeviceGetCount()
    every = [driver.cuDeviceGet(number)[1] for number in range(devices)]
    native = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    multiprocessors = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return {
        "status": int(started[0]),
        "version": version[1],
        "count": count[1],
        "names": [driver.cuDeviceGetName(64, one)[1].rstrip(b"\0 ").decode() for one in every],
        "buses": [driver.cuDeviceGetPCIBusId(32, one)[1].rstrip(b"\0 ").decode() for one in every],
        "uuids": [bytes(driver.cuDeviceGetUuid(one)[1].bytes).hex() for one in every],
        "sms": [driver.cuDeviceGetAttribute(multiprocessors, one)[1] for one in every],
        "reach": [[driver.cuDeviceCanAccessPeer(a, b)[1] for b in every] for a in every],
        "native": [[driver.cuDeviceGetP2PAttribute(native, a, b)[1] for b in every if b != a] for a in every],
        "beyond": int(driver.cuDeviceGet(devices)[0]),
    }


def test_bindings_are_told_of_gpus_and_of_each_pair(fake_libraries):
    found = fake_libraries.ask(told, 3, devices=3, p2p="-Aa;A--;a--", driver=13010).value
    assert (found["status"], found["version"], found["count"], found["beyond"]) == (0, 13010, 3, 101)
    assert found["buses"] == ["0000:1B:00.0", "0000:1C:00.0", "0000:1D:00.0"]
    assert len(set(found["uuids"])) == 3
    assert found["sms"] == [132] * 3
    assert found["reach"] == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert found["native"] == [[1, 0], [1, 0], [0, 0]]


def test_a_process_sees_what_it_is_shown(fake_libraries):
    found = fake_libraries.ask(told, 1, devices=4, CUDA_VISIBLE_DEVICES="2").value
    assert (found["count"], found["buses"]) == (1, ["0000:1D:00.0"])


def test_slices_of_one_gpu_have_its_bus_and_no_way_to_each_other(fake_libraries):
    found = fake_libraries.ask(told, 2, devices=2, mig=1).value
    assert found["buses"] == [MIG_BUS] * 2
    assert len(set(found["uuids"])) == 2
    assert all(" MIG " in name for name in found["names"])
    assert found["reach"] == [[0, 0], [0, 0]]


def refusals() -> list[int]:
    """Statuses of a batch of two copies that is right, and of those that are not."""
    import numpy as np
    from cuda.bindings import driver

    def batch(sizes: list[int], starts: list[int], order: int, stream: int) -> int:
        how = [driver.CUmemcpyAttributes() for _ in starts]
        for one in how:
            one.srcAccessOrder, one.flags = driver.CUmemcpySrcAccessOrder(order), 1
        at = [driver.CUdeviceptr(memory.ctypes.data) for memory in memories]
        status = driver.cuMemcpyBatchAsync(at[:2], at[2:], sizes, 2, how, starts, len(starts), stream)
        return int(status[0])

    memories = [np.full(8, float(i)) for i in range(4)]
    tried = [batch([64, 64], [0], 1, 7), batch([64, 64], [0, 1], 1, 7)]
    tried += [batch([64, 64], [0], 1, 0), batch([64, 64], [1], 1, 7), batch([64, 0], [0], 1, 7)]
    tried += [batch([64, 64], [0, 0], 1, 7)]
    return [*tried, *(int(memory[0]) for memory in memories)]


@pytest.mark.parametrize(("refuse", "expected"), [("", [0, 0, 1, 1, 1, 1]), ("cuMemcpyBatchAsync=801", [801] * 6)])
def test_batches_are_copied_or_refused(fake_libraries, refuse, expected):
    answered = fake_libraries.ask(refusals, refuse=refuse)
    copied = [2, 3, 2, 3] if not refuse else [0, 1, 2, 3]
    assert answered.value == [*expected, *copied]
    assert [batch["starts"] for batch in answered.of("cuMemcpyBatchAsync")] == ([[0], [0, 1]] if not refuse else [])


def batch_of_old() -> str:
    from cuda.bindings import driver

    try:
        driver.cuMemcpyBatchAsync([], [], [], 0, [], [], 0, 7)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("version", "there"), [(12070, False), (12080, False), (13000, True), (13010, True)])
def test_bindings_call_what_came_with_13(fake_libraries, version, there):
    """The batch of 12.8 takes another argument, and bindings of 13 do not call it."""
    assert ("not found" not in fake_libraries.ask(batch_of_old, driver=version).value) is there
