"""Runs of stock FSDP2 with causes of waiting drawn and put in, each diagnosed and held against what ranks measured.

    pytest tests/benchmarks/test_bench_causes.py --benchmark-only -o addopts="" -s

Compute sleeps, so that a busy machine hardly matters.
"""

import argparse

from causes import lived

RUNS, FEW = 30, 2
WRONG = 2  # of them that a busy machine may bring about


def test_causes_are_named_and_idle_is_within_two_points(benchmark):
    """Of a cause and of nothing where nobody asks for time: that a diagnosis comes, whatever it says."""
    count = RUNS if not benchmark.disabled else FEW
    asked = argparse.Namespace(live=count, ranks=2, steps=3 if not benchmark.disabled else 1, seed=1)
    every = benchmark.pedantic(lived, args=(asked,), rounds=1)
    assert len(every) == count
    benchmark.extra_info |= {"wrong": sum(not one.right for one in every), "far": sum(not one.near for one in every)}
    if not benchmark.disabled:
        assert benchmark.extra_info["wrong"] <= WRONG
        assert benchmark.extra_info["far"] <= WRONG
