"""The driver without a GPU that other tests build on: cuda-bindings takes it for NVIDIA's, and it is as strict."""

import pytest


def told(devices):
    """What the real cuda-bindings are told of the machine, and of each pair of its GPUs."""
    from cuda.bindings import driver

    status, count = int(driver.cuInit(0)[0]), driver.cuDeviceGetCount()[1]
    every = [driver.cuDeviceGet(number)[1] for number in range(devices)]
    native = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    multiprocessors = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return {
        "counts": [status, driver.cuDriverGetVersion()[1], count, int(driver.cuDeviceGet(devices)[0])],
        "slices": [b" MIG " in driver.cuDeviceGetName(64, one)[1] for one in every],
        "buses": [driver.cuDeviceGetPCIBusId(32, one)[1].rstrip(b"\0 ").decode()[5:7] for one in every],
        "uuids": len({bytes(driver.cuDeviceGetUuid(one)[1].bytes) for one in every}),
        "sms": [driver.cuDeviceGetAttribute(multiprocessors, one)[1] for one in every],
        "reach": [[driver.cuDeviceCanAccessPeer(a, b)[1] for b in every] for a in every],
        "native": [[driver.cuDeviceGetP2PAttribute(native, a, b)[1] for b in every if b != a] for a in every],
    }


@pytest.mark.parametrize(
    ("machine", "counts", "buses", "reach", "native"),
    [
        ({"devices": 3, "p2p": "-Aa;A--;a--", "driver": 13010}, [0, 13010, 3, 101], ["1B", "1C", "1D"],
         [[0, 1, 1], [1, 0, 0], [1, 0, 0]], [[1, 0], [1, 0], [0, 0]]),
        ({"devices": 4, "driver": 13000, "CUDA_VISIBLE_DEVICES": "2"}, [0, 13000, 1, 101], ["1D"], [[0]], [[]]),
        ({"devices": 2, "driver": 13000, "mig": 1}, [0, 13000, 2, 101], ["1B"] * 2, [[0, 0], [0, 0]], [[0], [0]]),
    ],
)  # fmt: skip
def test_bindings_are_told_of_gpus_and_of_each_pair(fake_libraries, machine, counts, buses, reach, native):
    """A process sees what it is shown; slices of one GPU have its bus, and no way to each other."""
    found = fake_libraries.ask(told, len(buses), **machine).value
    assert found == {"counts": counts, "slices": ["mig" in machine] * len(buses), "buses": buses,
                     "uuids": len(buses), "sms": [132] * len(buses), "reach": reach, "native": native}  # fmt: skip


def batches(kinds):
    """Statuses of batches of two copies, and what the memory has then."""
    import numpy as np
    from cuda.bindings import driver

    memories, found = [np.full(8, float(i)) for i in range(4)], []
    for sizes, starts, stream in kinds:
        how = [driver.CUmemcpyAttributes() for _ in starts]
        for one in how:
            one.srcAccessOrder, one.flags = driver.CUmemcpySrcAccessOrder(1), 1
        at = [driver.CUdeviceptr(memory.ctypes.data) for memory in memories]
        try:
            status = driver.cuMemcpyBatchAsync(at[:2], at[2:], sizes, 2, how, starts, len(starts), stream)
        except RuntimeError:
            found.append("not called")
        else:
            found.append(int(status[0]))
    return [*found, *(int(memory[0]) for memory in memories)]


RIGHT = [([64, 64], [0], 7), ([64, 64], [0, 1], 7)]
WRONG = [([64, 64], [0], 0), ([64, 64], [1], 7), ([64, 0], [0], 7), ([64, 64], [0, 0], 7)]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({"driver": 13000}, [0, 0, 1, 1, 1, 1, 2, 3, 2, 3]),
        ({"driver": 13010}, [0, 0, 1, 1, 1, 1, 2, 3, 2, 3]),
        ({"driver": 13000, "refuse": "cuMemcpyBatchAsync=801"}, [*[801] * 6, 0, 1, 2, 3]),
        ({"driver": 12080}, [*["not called"] * 6, 0, 1, 2, 3]),  # its batch takes another argument
        ({"driver": 12070}, [*["not called"] * 6, 0, 1, 2, 3]),
    ],
)
def test_batches_are_copied_or_refused(fake_libraries, machine, expected):
    answered = fake_libraries.ask(batches, RIGHT + WRONG, **machine)
    assert answered.value == expected
    assert [batch["starts"] for batch in answered.of("cuMemcpyBatchAsync")] == (
        [[0], [0, 1]] if expected[0] == 0 else []
    )
