"""What other trainers wait for: plans and learned costs. Run with: pytest tests/benchmarks/test_bench_library.py
--benchmark-only"""

from itertools import chain
from time import perf_counter

import numpy as np
import pytest

from odcsim.balance import LearnedCosts, plan
from odcsim.balance.library import weigh
from odcsim.heuristics.uneven import even_out

LIMIT = 65_536
SIZES = [(64, 8), (512, 8), (4096, 16)]


def lengths_of(devices, samples):
    drawn = 5500 + np.random.default_rng(0).exponential(11_300, size=2 * devices * samples + 64)
    return drawn[drawn <= LIMIT][: devices * samples].astype(np.int64)


def rounds(devices):
    return 5 if devices < 4096 else 2


@pytest.mark.parametrize(("devices", "samples"), SIZES)
@pytest.mark.parametrize("balancer", ["sorted-slice", "lb-mini"])
def test_a_plan_with_its_digest(benchmark, balancer, devices, samples):
    lengths = lengths_of(devices, samples)
    asked = {"devices": devices, "max_tokens": LIMIT, "balancer": balancer}
    found = benchmark.pedantic(plan, (lengths,), asked, rounds=rounds(devices))
    microbatches = [list(microbatch) for device in found.devices for microbatch in device]
    assert sorted(chain.from_iterable(microbatches)) == list(range(len(lengths)))
    assert all(lengths[microbatch].sum() <= LIMIT for microbatch in microbatches)
    assert found.digest == plan(lengths, **asked).digest


@pytest.mark.parametrize(("devices", "samples"), SIZES)
def test_a_plan_for_unlike_devices(benchmark, devices, samples):
    """And how many times as long it takes to look at every device for each sample, and to trade one by one."""
    lengths, speeds = lengths_of(devices, samples), np.random.default_rng(0).choice([1.0, 0.9, 0.5], devices)
    asked = {"devices": devices, "max_tokens": LIMIT, "balancer": "lb-mini", "speeds": speeds}
    found = benchmark.pedantic(plan, (lengths,), asked, rounds=rounds(devices))
    weights = weigh(lengths)
    start = perf_counter()
    groups = one_by_one(np.sort(weights)[::-1], speeds)
    if not benchmark.disabled:
        benchmark.extra_info["times as long one by one"] = round((perf_counter() - start) / benchmark.stats["min"], 1)
    mean = weights.sum() / speeds.sum()
    loads = [[weights[list(device)].sum() for device in map(chain.from_iterable, found.devices)]]
    loads.append([np.sort(weights)[::-1][group].sum() for group in groups])
    gaps = [float((np.array(load) / speeds).max() / mean - 1) for load in loads]
    benchmark.extra_info["over the mean in %, and one by one"] = [round(100 * gap, 3) for gap in gaps]
    assert gaps[0] <= max(gaps[1], 5e-4) + 1e-4


def one_by_one(weights, speeds):
    groups = [[] for _ in speeds]
    loads = np.zeros(len(speeds))
    for i, weight in enumerate(weights):
        device = int(((loads + weight) / speeds).argmin())
        loads[device] += weight
        groups[device].append(i)
    return even_out(groups, weights, speeds)


@pytest.mark.parametrize("devices", [64, 512, 4096])
def test_learning_from_four_microbatches_of_every_device(benchmark, devices):
    rng = np.random.default_rng(0)

    def told():
        costs = LearnedCosts(devices)
        for i in range(4 * devices):
            part = rng.integers(100, 30_000, 3).astype(np.float64)
            took = (1e-4 * part.sum() + 1e-9 * (part * part).sum()) * np.exp(0.03 * rng.standard_normal())
            costs.update([part.astype(np.int64)], took, i % devices)
        return (costs,), {}

    found = benchmark.pedantic(lambda costs: costs.coefficients, setup=told, rounds=rounds(devices))
    assert found.linear == pytest.approx(1e-4, rel=0.05)
    assert found.quadratic == pytest.approx(1e-9, rel=0.25)
