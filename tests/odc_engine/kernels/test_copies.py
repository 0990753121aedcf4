"""Copies between a whole tensor and its parts: in batches of a driver that is not here, and one by one."""

import fake_copies
import pytest
import torch
from cuda.bindings import driver as real
from fake_copies import FakeCopies
from hypothesis import given, settings
from hypothesis import strategies as st

from odc_engine.kernels import copies
from odc_engine.kernels.copies import Parts

REFUSING = real.CUresult.CUDA_ERROR_NOT_SUPPORTED


@pytest.fixture(autouse=True)
def without_a_driver():
    try:
        real.cuInit(0)
    except RuntimeError:
        return
    pytest.skip("there is a driver here")


@settings(deadline=None)
@given(
    count=st.integers(1, 5),
    n=st.integers(0, 9),
    first=st.integers(0, 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    driver=st.sampled_from([FakeCopies, lambda: FakeCopies(REFUSING), lambda: None]),
    stream=st.sampled_from([0, 7]),
)
def test_parts_come_to_their_places_and_back(count, n, first, dtype, driver, stream):
    with pytest.MonkeyPatch.context() as patch:
        fake = fake_copies.install(patch, driver(), stream)
        expected = torch.randn(count * n).to(dtype)
        parts = [part.clone() for part in expected.view(count, n)]
        whole = torch.zeros(count * n, dtype=dtype)
        between = Parts(parts, first % count)
        between.collect(whole)
        assert torch.equal(whole, expected)
        between.spread(-expected)
        assert torch.equal(torch.cat(parts), -expected)
        if isinstance(fake, FakeCopies):
            assert fake.batches == [(7, count)] * (2 if n and stream else 0)


def test_what_does_not_fit_is_refused():
    between = Parts([torch.zeros(3), torch.zeros(3)])
    for whole in (torch.zeros(5), torch.zeros(6, dtype=torch.bfloat16), torch.zeros(6, 2)[:, 0]):
        with pytest.raises(ValueError, match=r"for 2 parts of 12 bytes"):
            between.collect(whole)


@pytest.mark.parametrize(("version", "known"), [(12070, False), (12080, True), (13000, True)])
def test_older_drivers_take_no_batches(version, known, monkeypatch):
    monkeypatch.setattr(real, "cuDriverGetVersion", lambda: (real.CUresult.CUDA_SUCCESS, version))
    assert (copies._driver.__wrapped__() is real) is known
