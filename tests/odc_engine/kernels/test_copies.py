"""Copies of parts into a whole tensor: one by one, and in batches, under the real cuda-bindings, whose driver is
`fake_driver.c`."""

from random import Random

import pytest
import torch
from cuda.bindings import driver as real
from hypothesis import given, settings
from hypothesis import strategies as st

from odc_engine.kernels import copies
from odc_engine.kernels.copies import Parts

# Parts, own, elsewhere, elements of each: a GPU for each, all on one, two on each of two, a part alone, and drawn ones.
CASES = [(4, 2, [0, 1, 3], 8), (4, 1, [], 8), (4, 0, [2, 3], 8), (1, 0, [], 8), (3, 1, [0, 2], 0)]
CASES += [(5, n % 5, sorted(Random(n).sample(range(5), n % 6)), 1 + n) for n in range(30)]


def moved(cases, stream, dtype=torch.float32):
    """Of each: whether all came to its place, where parts are, and where they came. Then what was counted."""
    if stream is not None:
        copies._stream = lambda _: stream
    found = []
    for count, own, elsewhere, n in cases:
        expected = torch.randn(count * n).to(dtype)
        parts = [part.clone() for part in expected.view(count, n)]
        whole = torch.zeros(count * n, dtype=dtype)
        Parts(parts, own, elsewhere=elsewhere).collect(whole)
        found.append([torch.equal(whole, expected), [part.data_ptr() for part in parts], whole.data_ptr()])
    return [found, copies.counts()]


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 9), st.integers(0, 4), st.sets(st.integers(0, 4)), st.booleans())
def test_parts_come_to_their_places(count, n, own, elsewhere, half):
    [[right, *_]], _ = moved([(count, own % count, elsewhere, n)], None, torch.bfloat16 if half else torch.float32)
    assert right


def test_what_does_not_fit_is_refused():
    between = Parts([torch.zeros(3), torch.zeros(3)])
    for whole in (torch.zeros(5), torch.zeros(6, dtype=torch.bfloat16), torch.zeros(6, 2)[:, 0]):
        with pytest.raises(ValueError, match=r"for 2 parts of 12 bytes"):
            between.collect(whole)


@pytest.mark.parametrize(("version", "known"), [(12070, False), (12080, False), (13000, True)])
def test_older_drivers_take_no_batches(version, known, monkeypatch):
    monkeypatch.setattr(real, "cuDriverGetVersion", lambda: (real.CUresult.CUDA_SUCCESS, version))
    assert (copies._driver.__wrapped__() is real) is known


def test_a_batch_has_peers_alone_and_the_hint_for_those_on_other_gpus(fake_libraries):
    answered = fake_libraries.ask(moved, CASES, 7, driver=13010)
    found, counted = answered.value
    batches = iter(answered.of("cuMemcpyBatchAsync"))
    for (count, own, elsewhere, n), (right, addresses, whole) in zip(CASES, found, strict=True):
        assert right
        peers = [i for i in range(count) if i != own]
        if not peers or not n:
            continue
        batch = next(batches)
        hinted, bounds = [], [*batch["starts"], len(peers)]
        for start, stop, flag in zip(bounds, bounds[1:], batch["flags"], strict=False):
            hinted += batch["sources"][start:stop] if flag else []
        assert {addresses.index(at) for at in hinted} == set(elsewhere) - {own}
        assert batch["sizes"] == [4 * n] * len(peers)
        assert sorted((at - whole) // (4 * n) for at in batch["targets"]) == peers
        assert batch["orders"] == [1] * len(batch["starts"])
        assert batch["stream"] == 7
    assert next(batches, None) is None
    assert counted == {"in a batch": 9 + 4 * 30}


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
    assert counted == {told: 9 + 4 * 30}
    assert answered.calls == []
