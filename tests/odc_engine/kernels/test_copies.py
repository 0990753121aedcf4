"""Copies of parts into a whole tensor: in batches of a driver that is not here, and one by one."""

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
    own=st.integers(0, 4),
    elsewhere=st.sets(st.integers(0, 4)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    driver=st.sampled_from([FakeCopies, lambda: FakeCopies(REFUSING), lambda: None]),
    stream=st.sampled_from([0, 7]),
)
def test_parts_come_to_their_places(count, n, own, elsewhere, dtype, driver, stream):
    with pytest.MonkeyPatch.context() as patch:
        fake = fake_copies.install(patch, driver(), stream)
        expected = torch.randn(count * n).to(dtype)
        parts = [part.clone() for part in expected.view(count, n)]
        whole = torch.zeros(count * n, dtype=dtype)
        between = Parts(parts, own % count, elsewhere=elsewhere)
        between.collect(whole)
        assert torch.equal(whole, expected)
        if isinstance(fake, FakeCopies):
            assert fake.batches == [(7, count - 1)] * bool(n and stream and count > 1)


def test_what_does_not_fit_is_refused():
    between = Parts([torch.zeros(3), torch.zeros(3)])
    for whole in (torch.zeros(5), torch.zeros(6, dtype=torch.bfloat16), torch.zeros(6, 2)[:, 0]):
        with pytest.raises(ValueError, match=r"for 2 parts of 12 bytes"):
            between.collect(whole)


@pytest.mark.parametrize(("version", "known"), [(12070, False), (12080, False), (13000, True)])
def test_older_drivers_take_no_batches(version, known, monkeypatch):
    monkeypatch.setattr(real, "cuDriverGetVersion", lambda: (real.CUresult.CUDA_SUCCESS, version))
    assert (copies._driver.__wrapped__() is real) is known


# Under the real cuda-bindings, whose driver is `fake_driver.c`.

CASES = [
    # parts, own, elsewhere
    (4, 2, [0, 1, 3]),  # a GPU for each
    (4, 1, []),  # all on one
    (4, 0, [2, 3]),  # two on each of two
    (1, 0, []),
]


def moved(cases, stream):
    """Of each: whether all came to its place, where parts are, and where they came. Then what was counted."""
    copies._stream = lambda _: stream
    found = []
    for count, own, elsewhere in cases:
        parts = [torch.full((8,), float(i)) for i in range(count)]
        whole = torch.full((8 * count,), -1.0)
        Parts(parts, own, elsewhere=elsewhere).collect(whole)
        found.append([torch.equal(whole, torch.cat(parts)), [part.data_ptr() for part in parts], whole.data_ptr()])
    return [found, copies.counts()]


def test_a_batch_has_peers_alone_and_the_hint_for_those_on_other_gpus(fake_libraries):
    answered = fake_libraries.ask(moved, CASES, 7, driver=13010)
    found, counted = answered.value
    batches = iter(answered.of("cuMemcpyBatchAsync"))
    for (count, own, elsewhere), (right, addresses, whole) in zip(CASES, found, strict=True):
        assert right
        peers = [i for i in range(count) if i != own]
        if not peers:
            continue
        batch = next(batches)
        bounds = [*batch["starts"], len(peers)]
        hinted = {
            addresses.index(at)
            for start, stop, flag in zip(bounds, bounds[1:], batch["flags"], strict=False)
            for at in batch["sources"][start:stop]
            if flag
        }
        assert hinted == set(elsewhere)
        assert batch["sizes"] == [32] * len(peers)
        assert sorted((at - whole) // 32 for at in batch["targets"]) == peers
        assert batch["orders"] == [1] * len(batch["starts"])
        assert batch["stream"] == 7
    assert next(batches, None) is None
    assert counted == {"in a batch": 9}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "stream", "told"),
    [
        ({"refuse": "cuMemcpyBatchAsync=801"}, 7, "one by one: the driver answers CUDA_ERROR_NOT_SUPPORTED"),
        ({"driver": 12080}, 7, "one by one: no driver takes batches"),
        ({}, 0, "one by one: on the default stream"),
    ],
)
def test_why_no_batch_was_taken_is_counted(fake_libraries, machine, stream, told):
    answered = fake_libraries.ask(moved, CASES, stream, **machine)
    found, counted = answered.value
    assert all(right for right, *_ in found)
    assert counted == {told: 9}
    assert answered.calls == []
