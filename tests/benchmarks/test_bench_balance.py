"""How quick the balancers are. Run with: pytest tests/benchmarks/test_bench_balance.py --benchmark-only"""

import heapq
from itertools import chain, cycle
from time import perf_counter

import numpy as np
import pytest

from odcsim.balance import NAMES, balance
from odcsim.heuristics.karmarkar_karp import differencing

LIMIT = 65_536


def minibatch(seed, count):
    """Truncated exponential lengths, mean about 16.5K (a shape, not data), and seconds from a published 7B fit."""
    drawn = 5500 + np.random.default_rng(seed).exponential(11_300, size=2 * count + 64)
    lengths = drawn[drawn <= LIMIT][:count].astype(np.int64)
    x = lengths / 32_000
    return lengths, 8.77 * x + 4.35 * x * x


def heaviest_first(seed, count):
    return np.sort(minibatch(seed, count)[1])[::-1].tolist()


def with_a_state_per_sample(weights, parts):
    """Karmarkar-Karp as textbooks write it: the sums only, without even the samples in them."""
    heap = [(-weight, i, [weight] + [0.0] * (parts - 1)) for i, weight in enumerate(weights)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, _, one), (_, i, other) = heapq.heappop(heap), heapq.heappop(heap)
        state = sorted((a + b for a, b in zip(one, reversed(other), strict=True)), reverse=True)
        heapq.heappush(heap, (state[-1] - state[0], i, state))
    return heap[0][2]


def holds_each_once(devices, lengths):
    """Every sample, and no microbatch over the limit."""
    microbatches = [list(microbatch) for device in devices for microbatch in device]
    assert sorted(chain.from_iterable(microbatches)) == list(range(len(lengths)))
    assert all(lengths[microbatch].sum() <= LIMIT for microbatch in microbatches)


def best_of(times, call):
    taken = []
    for _ in range(times):
        start = perf_counter()
        call()
        taken.append(perf_counter() - start)
    return min(taken)


def test_200_small_minibatches_with_every_balancer(benchmark):
    drawn = [minibatch(seed, 8 * 4) for seed in range(200)]

    def every_balancer():
        return [balance(name, lengths, weights, 8, LIMIT) for name in NAMES for lengths, weights in drawn]

    found = benchmark.pedantic(every_balancer, rounds=5)
    assert len(found) == 200 * len(NAMES)
    for devices, (lengths, _) in zip(found, cycle(drawn), strict=False):
        holds_each_once(devices, lengths)


SIZES = [(8, 64), (64, 8), (512, 8), (4096, 4), (4096, 16), (1024, 64)]


@pytest.mark.parametrize("name", ["lb-micro", "lb-mini", "sorted-slice", "lb-robust"])
@pytest.mark.parametrize(("devices", "samples"), SIZES)
def test_one_minibatch(benchmark, name, devices, samples):
    lengths, weights = minibatch(0, devices * samples)
    units = iter(1 + 1e-9 * n for n in range(100))  # so that no split is remembered

    def another():
        return (name, lengths, next(units) * weights, devices, LIMIT), {}

    found = benchmark.pedantic(balance, setup=another, rounds=5 if devices < 1024 else 2)
    assert len(found) == devices
    holds_each_once(found, lengths)


@pytest.mark.parametrize(("devices", "samples"), SIZES)
def test_numpy_sorting_and_adding_up_as_many_samples(benchmark, devices, samples):
    """What no plan of so many can take less than."""
    weights = minibatch(0, devices * samples)[1]

    def touched():
        order = (-weights).argsort(kind="stable")
        return np.bincount(np.arange(len(order)) % devices, weights[order], devices), order.tolist()

    loads, order = benchmark.pedantic(touched, rounds=5)
    assert loads.sum() == pytest.approx(weights.sum())
    assert len(order) == devices * samples


@pytest.mark.parametrize(("devices", "samples"), [(512, 8), (4096, 16)])
def test_exact_differencing(benchmark, devices, samples):
    weights = heaviest_first(0, devices * samples)
    found = benchmark.pedantic(differencing, (weights, devices), rounds=5)
    assert sorted(chain.from_iterable(found)) == list(range(devices * samples))
    sums = [sum(weights[i] for i in part) for part in found]
    assert len(sums) == devices
    assert max(sums) - min(sums) <= 0.05 * np.mean(sums)


def test_exact_differencing_against_the_textbook_form(benchmark):
    weights = heaviest_first(0, 64 * 8)
    benchmark.pedantic(differencing, (weights, 64), rounds=20)
    if benchmark.disabled:
        assert len(with_a_state_per_sample(weights, 64)) == 64
        return
    ratio = best_of(3, lambda: with_a_state_per_sample(weights, 64)) / best_of(10, lambda: differencing(weights, 64))
    benchmark.extra_info["textbook_over_ours"] = round(ratio, 1)
    assert ratio > 4
