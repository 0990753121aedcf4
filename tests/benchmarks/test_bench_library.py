"""What other trainers wait for: plans and learned costs. Run with: pytest tests/benchmarks/test_bench_library.py
--benchmark-only"""

import numpy as np
import pytest

from odcsim.balance import LearnedCosts, plan

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
    benchmark.pedantic(plan, (lengths,), asked, rounds=rounds(devices))


@pytest.mark.parametrize(("devices", "samples"), SIZES)
def test_a_plan_for_unlike_devices(benchmark, devices, samples):
    speeds = np.random.default_rng(0).choice([1.0, 0.9, 0.5], devices)
    asked = {"devices": devices, "max_tokens": LIMIT, "balancer": "lb-mini", "speeds": speeds}
    benchmark.pedantic(plan, (lengths_of(devices, samples),), asked, rounds=rounds(devices))


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

    benchmark.pedantic(lambda costs: costs.coefficients, setup=told, rounds=rounds(devices))
