"""What the planners promise: seconds, memory, distance to the lower bound, and idle where the cost model is wrong.

    pytest tests/benchmarks/test_bench_planners.py --benchmark-only -o addopts=""

Seconds also as a ratio to the textbook's Karmarkar-Karp in the same run (`extra_info`), so that they say something on
any machine. Lengths are shapes, not data; seconds are those of a published 7B fit.
"""

import tracemalloc
from time import perf_counter

import numpy as np
import pytest
from draws import chat, clipped, longalign, swe
from textbook import textbook

from odcsim.balance import balance
from odcsim.heuristics.bound import lower_bound
from odcsim.heuristics.longest_first import longest_first
from odcsim.heuristics.scenarios import in_bounds, scenarios
from odcsim.heuristics.trades import hold, relieve

LIMITS = {longalign: 65_536, clipped: 65_536, swe: 65_536, chat: 16_384}
shapes = pytest.mark.parametrize("draw", LIMITS)


def parts(lengths):
    x = lengths / 32_000
    return 8.77 * x, 4.35 * x * x


def minibatch(draw, seed, count):
    lengths = draw(seed, count)
    linear, quadratic = parts(lengths)
    return lengths, linear + quadratic, scenarios(linear, quadratic)


def planned(case, devices, limit, name="lb-robust"):
    lengths, weights, rows = case
    return balance(name, lengths, weights, devices, limit, scenarios=rows)


@shapes
@pytest.mark.parametrize(
    ("devices", "samples", "seconds"), [(8, 4, 0.01), (64, 8, 0.03), (512, 8, 0.03), (4096, 3, 0.4), (4096, 16, 0.4)]
)
def test_a_whole_plan(benchmark, draw, devices, samples, seconds):
    """Partition and packing."""
    case = minibatch(draw, 0, devices * samples)
    benchmark.pedantic(planned, (case, devices, LIMITS[draw]), rounds=5, warmup_rounds=1)
    tracemalloc.start()
    planned(case, devices, LIMITS[draw])
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    benchmark.extra_info["MB"] = round(megabytes, 1)
    assert megabytes <= 50
    assert benchmark.disabled or benchmark.stats["min"] <= seconds


@shapes
def test_the_partition_alone_at_65536_samples(benchmark, draw):
    _, weights, rows = minibatch(draw, 0, 4096 * 16)
    order = np.argsort(-weights, kind="stable")

    def partition():
        return relieve(hold(longest_first(weights[order], 4096), 4096), in_bounds(rows[:, order], 4096))

    benchmark.pedantic(partition, rounds=5, warmup_rounds=1)
    assert benchmark.disabled or benchmark.stats["min"] <= 0.1


def test_a_whole_plan_against_the_sums_of_the_textbook(benchmark):
    """The textbook is given the lightest task there is: not even which samples make up its sums."""
    case = minibatch(longalign, 0, 512 * 8)
    benchmark.pedantic(planned, (case, 512, 65_536), rounds=5, warmup_rounds=1)
    start = perf_counter()
    textbook(case[1].tolist(), 512)
    if benchmark.disabled:
        return
    ratio = (perf_counter() - start) / benchmark.stats["min"]
    benchmark.extra_info["textbook over ours"] = round(ratio)
    assert ratio > 20


def lost(draw, seed, devices, samples, factor):
    """Idle that the plan causes where the quadratic part is `factor` times what was planned with."""
    case = minibatch(draw, seed, devices * samples)
    linear, quadratic = parts(case[0])
    truth = linear + factor * quadratic
    loads = [truth[[i for part in device for i in part]].sum() for device in planned(case, devices, LIMITS[draw])]
    return 1 - lower_bound(truth, devices) / max(loads)


@shapes
@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize(("devices", "draws"), [(8, 40), (64, 10), (512, 3), (4096, 1)])
def test_robust_plans_bear_a_quadratic_part_that_is_off_by_a_fifth(benchmark, draw, factor, devices, draws):
    found = benchmark.pedantic(lambda: [lost(draw, seed, devices, 8, factor) for seed in range(draws)], rounds=1)
    benchmark.extra_info["idle in %"] = round(100 * float(np.mean(found)), 2)
    assert np.mean(found) <= 0.013


def idle_in_lockstep(name, draw, seed, devices, samples):
    _, weights, _ = case = minibatch(draw, seed, devices * samples)
    steps = zip(
        *[[weights[list(part)].sum() for part in device] for device in planned(case, devices, LIMITS[draw], name)],
        strict=True,
    )
    return 1 - weights.sum() / (devices * sum(max(step) for step in steps))


def test_in_lockstep_sorted_slice_is_never_worse_than_lb_micro(benchmark):
    """36 cells, each the mean of its draws."""

    def cells():
        return [
            [
                np.mean([idle_in_lockstep(name, draw, seed, devices, samples) for seed in range(draws)])
                for name in ("sorted-slice", "lb-micro")
            ]
            for draw in (longalign, swe, chat)
            for devices, draws in ((8, 20), (64, 5), (512, 2))
            for samples in (2, 4, 8, 16)
        ]

    found = benchmark.pedantic(cells, rounds=1)
    better = sum(ours < theirs - 1e-9 for ours, theirs in found)
    benchmark.extra_info["better in"] = f"{better} of {len(found)}"
    assert all(ours <= theirs + 1e-9 for ours, theirs in found)
    assert better > len(found) / 2
