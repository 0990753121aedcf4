"""The kernels on a GPU, held against torch by the checks that run under the interpreter, too. Not run yet."""

import pytest
import shards
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
# Each block is compiled, so there are few; sizes come in all kinds of alignment.
cases = shards.cases("cuda", largest=20_000, blocks=(256, 4096), programs=(1, 600))
drawn = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def transfers():
    from odc_engine.kernels import transfers

    return transfers


@drawn
@given(case=cases)
def test_gather(transfers, case):
    shards.check_gather(transfers, case)


@drawn
@given(case=cases, times=st.integers(0, 3))
def test_add(transfers, case, times):
    shards.check_add(transfers, case, times)


@drawn
@given(case=cases, times=st.integers(1, 3))
def test_write(transfers, case, times):
    shards.check_write(transfers, case, times)


@drawn
@given(case=cases, order=st.integers(1, 5).flatmap(lambda n: st.permutations(range(n))))
def test_total(transfers, case, order):
    shards.check_total(transfers, case, order)


def test_many_streams_add_at_once_and_lose_nothing(transfers):
    """Whole numbers: exact in any order."""
    n, writers = 1 << 16, 8
    sums = torch.zeros(n, device="cuda")
    whole = torch.arange(n, device="cuda") % 100
    place = transfers.Shards(transfers.table([sums.data_ptr()], "cuda"), 0, 0, n)
    streams = [torch.cuda.Stream() for _ in range(writers)]
    given = [(whole + writer).float() for writer in range(writers)]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, gradients in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                transfers.add(place, gradients)
    torch.cuda.synchronize()
    assert torch.equal(sums, 20.0 * sum(given))


def test_bf16_is_rounded_to_the_nearest(transfers):
    """Where the interpreter cuts off."""
    shard = torch.randn(1 << 14, device="cuda")
    out = torch.empty_like(shard, dtype=torch.bfloat16)
    place = transfers.Shards(transfers.table([shard.data_ptr()], "cuda"), 0, 0, shard.numel())
    transfers.gather(place, out, torch.float32)
    assert torch.equal(out, shard.bfloat16())
