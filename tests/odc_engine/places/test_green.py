"""Groups of a GPU's SMs, with a driver that is not here: every call has the arguments that the real one takes."""

from types import SimpleNamespace

import pytest
from cuda import bindings
from cuda.bindings import driver as real

from odc_engine.backends import threads
from odc_engine.backends.backend import Use
from odc_engine.places import green, products
from odcsim.errors import InputError

SMS, PIECE = 132, 8
OK = real.CUresult.CUDA_SUCCESS


def resource(count):
    made = real.CUdevResource()
    made.type, made.sm.smCount = real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM, count
    return made


class FakeDriver:
    """Answers in tuples, as the real one does, and refuses arguments that the real one would not take."""

    CUdevResourceType, CUgreenCtxCreate_flags = real.CUdevResourceType, real.CUgreenCtxCreate_flags
    CUstream_flags = real.CUstream_flags

    def __init__(self):
        self.priorities = []  # of streams, as they are made

    def __getattr__(self, name):
        def call(*args):
            try:
                getattr(real, name)(*args)  # converts them, and then finds no driver here
            except RuntimeError:
                return OK, *getattr(self, f"_{name}")(*args)
            raise AssertionError(f"{name} was answered")

        return call

    def _cuDeviceGet(self, _number):  # noqa: N802
        return (real.CUdevice(0),)

    def _cuDeviceGetDevResource(self, _device, kind):  # noqa: N802
        assert kind == real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return (resource(SMS),)

    def _cuDevSmResourceSplitByCount(self, groups, every, flags, least):  # noqa: N802
        assert flags == 0
        each = -(-least // PIECE) * PIECE
        made = min(groups, every.sm.smCount // each)
        return [resource(each)] * made, made, resource(every.sm.smCount - made * each)

    def _cuDevResourceGenerateDesc(self, resources, count):  # noqa: N802
        assert len(resources) == count
        return (real.CUdevResourceDesc(1),)

    def _cuGreenCtxCreate(self, _description, _device, flags):  # noqa: N802
        assert flags == real.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        return (real.CUgreenCtx(2),)

    def _cuGreenCtxStreamCreate(self, _context, flags, priority):  # noqa: N802
        assert flags == real.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.priorities.append(priority)
        return (real.CUstream(len(self.priorities)),)


@pytest.fixture
def gpu(monkeypatch):
    try:
        real.cuInit(0)
    except RuntimeError:
        pass
    else:
        pytest.skip("there is a driver here")
    monkeypatch.setattr(bindings, "driver", FakeDriver())
    monkeypatch.setattr(green.torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(green.torch.cuda, "ExternalStream", lambda pointer, device: (pointer, device))
    monkeypatch.setattr(green.torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=SMS))
    green.partitions.cache_clear()
    yield
    green.partitions.cache_clear()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("devices", "sms"), [(4, 32), (8, 16), (1, 128), (16, 8)])
def test_devices_have_groups_and_streams_of_their_own(devices, sms):
    parts = green.partitions(devices, green.share(devices))
    assert [part.sms for part in parts] == [sms] * devices
    streams = [stream for part in parts for stream in part.streams]
    assert streams == [(number, "cuda:0") for number in range(1, 1 + 3 * devices)]


@pytest.mark.usefixtures("gpu")
def test_transfers_go_before_compute_in_each_group():
    """As under FSDP2, whose streams for transfers have priority -1."""
    green.partitions(4, 32)
    assert bindings.driver.priorities == [0, -1, -1] * 4


@pytest.mark.usefixtures("gpu")
def test_a_run_plans_its_products_for_a_group(monkeypatch):
    told = []
    monkeypatch.setattr(products, "plan_for", lambda *sms: told.append(sms))
    assert len(threads.CUDA.places(Use(4))) == 4
    assert told == [(32, SMS)]


@pytest.mark.usefixtures("gpu")
def test_more_groups_than_fit_are_refused():
    with pytest.raises(InputError, match=r"5 groups of 32 SMs do not fit into 132 SMs.*use at most 4 devices"):
        green.partitions(5, 32)
    with pytest.raises(InputError, match="17 devices on 132 SMs"):
        green.share(17)


def split(cases):
    """Groups that the real cuda-bindings get: their SMs and streams, or the refusal."""
    green.torch.zeros = lambda *_, **__: None
    green.torch.cuda.ExternalStream = lambda pointer, device: (pointer, device)
    found = []
    for count, sms in cases:
        try:
            found.append([(part.sms, part.streams) for part in green.partitions(count, sms)])
        except (InputError, RuntimeError) as error:
            found.append(str(error))
    return found


def test_bindings_split_a_gpu_once_and_into_groups_apart(fake_libraries):
    answered = fake_libraries.ask(split, [[4, 32], [5, 32]], sms=132)
    parts, refused = answered.value
    assert [sms for sms, _ in parts] == [32] * 4
    streams = [stream for _, streams in parts for stream, _ in streams]
    assert len(set(streams)) == 12
    groups = answered.of("cuGreenCtxCreate")
    assert [(group["first"], group["sms"]) for group in groups] == [(0, 32), (32, 32), (64, 32), (96, 32)]
    assert [each["priority"] for each in answered.of("cuGreenCtxStreamCreate")] == [0, -1, -1] * 4
    assert refused.startswith("5 groups of 32 SMs do not fit into 132 SMs; use at most 4 devices")


@pytest.mark.slow
def test_what_the_driver_refuses_is_told_by_its_name(fake_libraries):
    [refused] = fake_libraries.ask(split, [[2, 8]], refuse="cuGreenCtxCreate=801").value
    assert refused == "the driver answers CUDA_ERROR_NOT_SUPPORTED"
