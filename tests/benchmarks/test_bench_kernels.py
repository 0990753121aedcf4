"""The kernels on one GPU, against what a plain copy reaches in the same run. Not run yet.

    pytest tests/benchmarks/test_bench_kernels.py -m gpu --benchmark-only -s

Rates count bytes read and written: a copy, a gather and a slot's first write pass over memory twice, an atomic sum
three times, a total of W slots W + 1 times.
"""

import pytest
import torch

from odc_engine.measuring import tuning
from odc_engine.measuring.tuning import MB, OF_COPY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def launches():
    """The usual launch under its name, and the grid."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    usual, found = tuning.timed(tuning.grid(sms), (), tuning.rates)
    return {"usual": usual, **{str(launch): launch for launch in found}}


@pytest.mark.parametrize("size", [16 * MB, 64 * MB, 256 * MB, 1024 * MB], ids=lambda size: f"{size // MB} MB")
def test_against_a_copy(benchmark, size):
    """Gathers and slots at 85 % of the copy's rate; atomic sums are told, with their distance."""
    found: dict[str, dict[str, float]] = {}
    benchmark.pedantic(lambda: found.update({name: tuning.rates(size, launch) for name, launch in launches().items()}))
    print(f"\n{size // MB} MB, {torch.cuda.get_device_name()}, GB/s and share of the copy")
    for name, each in found.items():
        share = {way: f"{rate / 1e9:.0f} ({rate / each['copy']:.0%})" for way, rate in each.items()}
        print(f"{name:<16}", share)
    usual = found["usual"]
    benchmark.extra_info |= {way: round(rate / usual["copy"], 3) for way, rate in usual.items()}
    for way in ("gather", "gather bf16", "write"):
        assert usual[way] >= OF_COPY * usual["copy"], f"{way}: {usual[way] / usual['copy']:.0%} of the copy"
