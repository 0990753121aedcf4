"""How quick the balancers are, what memory a plan takes, and what other trainers wait for: plans and learned costs.

    pytest tests/benchmarks/test_bench_balance.py --benchmark-only -o addopts=""

Seconds also as a ratio to something bare in the same run (`extra_info`), so that they say something on any machine.
Lengths are shapes, not data; seconds are those of a published 7B fit.
"""

import tracemalloc
from itertools import chain
from time import perf_counter

import numpy as np
import pytest
from draws import chat, clipped, cost, longalign, swe
from textbook import textbook

from odcsim.balance import LearnedCosts, balance, plan
from odcsim.balance.library import weigh
from odcsim.balance.partition import differencing

LIMITS = {longalign: 65_536, clipped: 65_536, swe: 65_536, chat: 16_384}
LIMIT = 65_536
SIZES = [(8, 64), (64, 8), (512, 8), (4096, 4), (4096, 16), (1024, 64)]
FEW = [(64, 8), (512, 8), (4096, 16)]


def rounds(devices):
    return 5 if devices < 1024 else 2


def holds_each_once(devices, lengths, limit=LIMIT):
    """Every sample, and no microbatch over the limit."""
    microbatches = [list(microbatch) for device in devices for microbatch in device]
    assert sorted(chain.from_iterable(microbatches)) == list(range(len(lengths)))
    assert all(lengths[microbatch].sum() <= limit for microbatch in microbatches)


@pytest.mark.parametrize("draw", LIMITS)
@pytest.mark.parametrize(
    ("devices", "samples", "seconds"), [(8, 4, 0.01), (64, 8, 0.03), (512, 8, 0.03), (4096, 3, 0.4), (4096, 16, 0.4)]
)
def test_a_robust_plan(benchmark, draw, devices, samples, seconds):
    """Partition and packing, and how many MB they take at most."""
    lengths = draw(0, devices * samples)
    asked = ("lb-robust", lengths, cost(lengths), devices, LIMITS[draw])
    holds_each_once(benchmark.pedantic(balance, asked, rounds=5, warmup_rounds=1), lengths, LIMITS[draw])
    tracemalloc.start()
    balance(*asked)
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    benchmark.extra_info["MB"] = round(megabytes, 1)
    assert megabytes <= 50
    assert benchmark.disabled or benchmark.stats["min"] <= seconds


@pytest.mark.parametrize("name", ["lb-micro", "lb-mini", "sorted-slice", "lb-robust"])
@pytest.mark.parametrize(("devices", "samples"), SIZES)
def test_one_minibatch(benchmark, name, devices, samples):
    """Beside numpy sorting and adding up as many samples, less than which no plan of so many can take."""
    lengths = longalign(0, devices * samples)
    weights, units = cost(lengths), iter(1 + 1e-9 * n for n in range(100))  # so that no split is remembered

    def another():
        return (name, lengths, next(units) * weights, devices, LIMIT), {}

    holds_each_once(benchmark.pedantic(balance, setup=another, rounds=rounds(devices)), lengths)
    start = perf_counter()
    order = (-weights).argsort(kind="stable")
    np.bincount(np.arange(len(order)) % devices, weights[order], devices), order.tolist()
    if not benchmark.disabled:
        benchmark.extra_info["times numpy alone"] = round(benchmark.stats["min"] / (perf_counter() - start), 1)


@pytest.mark.parametrize(("devices", "samples"), FEW)
def test_exact_differencing(benchmark, devices, samples):
    """And how much longer the textbook's form takes, without even the samples in its sums."""
    weights = np.sort(cost(longalign(0, devices * samples)))[::-1].tolist()
    found = benchmark.pedantic(differencing, (weights, devices), rounds=5)
    assert sorted(chain.from_iterable(found)) == list(range(devices * samples))
    sums = [sum(weights[i] for i in part) for part in found]
    assert max(sums) - min(sums) <= 0.05 * np.mean(sums)
    if not benchmark.disabled and devices < 4096:
        start = perf_counter()
        textbook(weights, devices)
        ratio = (perf_counter() - start) / benchmark.stats["min"]
        benchmark.extra_info["textbook over ours"] = round(ratio, 1)
        assert ratio > 4


@pytest.mark.parametrize(("devices", "samples"), FEW)
def test_a_plan_for_unlike_devices(benchmark, devices, samples):
    """And how far its last device is over the bound."""
    lengths, speeds = longalign(0, devices * samples), np.random.default_rng(0).choice([1.0, 0.9, 0.5], devices)
    asked = {"devices": devices, "max_tokens": LIMIT, "balancer": "lb-mini", "speeds": speeds}
    found = benchmark.pedantic(plan, (lengths,), asked, rounds=rounds(devices))
    weights = weigh(lengths)
    loads = np.array([weights[list(device)].sum() for device in map(chain.from_iterable, found.devices)])
    gap = (loads / speeds).max() / max(weights.sum() / speeds.sum(), weights.max() / speeds.max()) - 1
    benchmark.extra_info["over the bound in %"] = round(100 * gap, 3)
    assert gap <= 1e-3


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
