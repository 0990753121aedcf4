"""How fast it simulates, and how the cost grows. Each figure also as a ratio to a bare loop of the same size in the
same run (`extra_info`), so that it says something on any machine.

    pytest tests/benchmarks/test_bench_simulation.py --benchmark-only -o addopts=""
"""

import subprocess
import sys
import timeit
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from odcsim.balance import ALL, NAMES
from odcsim.decide.advice import Wish, searched
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.setting import plan
from odcsim.executors import analytic, des
from odcsim.executors.simulation import GROUP, usage
from odcsim.program import program
from odcsim.question import Question
from odcsim.reading import load
from odcsim.results import metrics

COMPARE = "compare longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4 --max-tokens 65536"
DEMO_START = [sys.executable, "-c", "import numpy"]


def beside(benchmark, bare, words: str, *given) -> None:
    """How many times as long as something bare takes, at its quickest."""
    if not benchmark.disabled:
        seconds = min(timeit.repeat(lambda: bare(*given), number=1, repeat=3))
        benchmark.extra_info[words] = round(benchmark.stats["min"] / seconds, 1)


def test_compare_from_the_command_line(benchmark):
    """Every balancer under every sync it can run, 200 minibatches, 8 devices, 28 layers, start-up included."""
    command = [sys.executable, "-m", "odcsim", *COMPARE.split()]
    done = benchmark.pedantic(
        lambda: subprocess.run(command, check=True, capture_output=True, text=True), rounds=3, warmup_rounds=1
    )
    assert done.stdout.count(" on-demand ") >= len(NAMES)
    assert "Yes: " in done.stdout
    beside(benchmark, lambda: subprocess.run(DEMO_START, check=True), "times python + numpy alone")


def durations(steps, minibatches: int, devices: int):
    return np.random.default_rng(0).exponential(size=(len(steps.durations), minibatches, devices))


def bare_scan(layers: int, minibatches: int, devices: int) -> None:
    """A max-plus scan over as many layers as the program runs: what no executor of this kind can undercut."""
    ready, seconds = np.zeros((minibatches, devices)), np.ones((minibatches, devices))
    for _ in range(layers):
        np.maximum(ready, ready.max(axis=1, keepdims=True), out=ready)
        ready += seconds


def scan(steps, table, *, measured: bool) -> float:
    """All minibatches in pieces whose rows stay in the cache, as `simulation.usage` runs them. Gives
    the seconds of all devices' compute where that is measured, and else those of all minibatches."""
    seconds = 0.0
    size = max(1, GROUP // table.shape[2])
    for first in range(0, table.shape[1], size):
        piece = table[:, first : first + size]
        asked, had, begun, order = analytic.recycled(steps, piece, metrics.uses(steps))
        if measured:
            seconds += metrics.measure_rows(steps, asked, had, order, begun, simulated=True).compute.sum()
        else:
            for _ in order:
                pass
            seconds += had[-1].max(axis=1).sum()
    return seconds


@pytest.mark.parametrize("measured", [False, True], ids=["times", "times-and-idle-parts"])
@pytest.mark.parametrize("sync", ["collective", "on-demand"])
def test_analytic_at_a_thousand_devices(benchmark, sync, measured):
    """1,024 devices x 64 layers x 8 microbatches x 100 minibatches."""
    steps = program(64, 8, sync)
    table = durations(steps, 100, 1024)
    found = benchmark.pedantic(lambda: scan(steps, table, measured=measured), rounds=3, warmup_rounds=1)
    compute = sum(table[step.duration].sum() for step in steps.steps if step.kind == "compute")
    assert found == pytest.approx(compute) if measured else compute / 1024 < found < compute
    beside(benchmark, bare_scan, "times a bare numpy scan", 64 * 8, 100, 1024)


def bare_steps(count: int) -> float:
    """A Python loop that does what a step is at least: take the later of two times and add."""
    now = other = 0.0
    for _ in range(count):
        other = now if now > other else other
        now = other + 1.0
    return now


@pytest.mark.parametrize("sync", ["collective", "on-demand"])
def test_des_steps_per_second(benchmark, sync):
    """20 minibatches of 4 microbatches on 8 devices, 28 layers."""
    steps = program(28, 4, sync)
    table = durations(steps, 20, 8)
    found = benchmark.pedantic(lambda: des.run(steps, table), rounds=3, warmup_rounds=1)
    assert np.array_equal(found[:2], analytic.run(steps, table))
    count = len(steps.steps) * 20 * 8
    beside(benchmark, bare_steps, "times a bare Python loop", count)


def touched(cells: int) -> None:
    """Every cell once: what reads each entry's seconds on one device cannot take less."""
    np.add(np.ones(cells), 1.0)


@pytest.mark.parametrize(("devices", "entries", "minibatches"), [(256, 1024, 8), (1024, 4096, 8), (1024, 4096, 32)])
def test_growth_of_a_queue(benchmark, devices, entries, minibatches):
    """About flat for each entry, whoever takes it. A third of the entries are alike, as where samples are cut."""
    steps, rng = program(28, 1, "on-demand"), np.random.default_rng(0)
    sizes = np.minimum(rng.exponential(size=(1, minibatches * entries, 1)), 1.1)
    seconds = np.broadcast_to(sizes, (len(steps.durations), *sizes.shape[1:]))
    queues = analytic.Entries([entries] * minibatches, seconds, np.zeros(devices, dtype=np.int64))
    table = durations(steps, minibatches, devices)
    found = benchmark.pedantic(lambda: analytic.take(steps, table, steps, queues), rounds=3, warmup_rounds=1)
    assert found.shape == (minibatches, entries)
    assert len(set(found[0].tolist())) > devices // 2
    beside(benchmark, touched, "times a touch of every cell", minibatches * entries * len(steps.steps))


@pytest.mark.parametrize(("devices", "minibatches"), [(64, 64), (1024, 8), (16384, 2)])
def test_growth_of_a_whole_comparison_with_devices(benchmark, devices, minibatches):
    """Drawing, planning, simulating and summing up of every row, as a multiple of what it takes to touch a number once
    for each layer that each device of each row runs."""
    lengths = "lognormal:median=8000,sigma=0.9,max=65536,samples=200000"
    asked = {"devices": devices, "minibatch": 4, "minibatches": minibatches, "max_tokens": 65536}
    setting, seeds = ask(lengths, "qwen2.5-7b", gpu="h100", **asked), count()

    def another():
        return (replace(setting, seed=next(seeds)),), {"doubted": False}  # so that no split is remembered

    found = benchmark.pedantic(compare, setup=another, rounds=3, warmup_rounds=1)
    assert {row.balancer for row in found.rows} == set(ALL)
    each = setting.cost.model.layers * minibatches * devices
    cells = [round(row.microbatches * each) for row in found.rows]
    beside(benchmark, lambda: list(map(touched, cells)), "times a touch of every cell")


ERRORS = {"5 % noise": {"sample_noise": 0.05}, "a device 10 % slow": {"slow": ((3, 1.1),)}}


@pytest.mark.parametrize("error", ERRORS)
def test_a_queue_levels_what_was_not_planned(benchmark, error):
    """At most 1 % idle with a queue, several times as much without, where samples take other times than planned or one
    device is slow. Seconds of the published 7B fit without what a microbatch costs by itself, no transfers: idle is
    what the plan and its errors cause. By the discrete-event executor."""
    sizes = {"devices": 64, "minibatch": 8, "minibatches": 5, "devices_per_node": 64}
    asked = ask("lognormal:median=11900,sigma=0.9,max=65536", "r1-distill-qwen-7b", gpu="a100", **sizes)
    fit = replace(asked.cost.profile, overhead=0.0, microbatch=0.0, fewest=0)
    cost = replace(asked.cost, profile=fit, cluster=replace(asked.cost.cluster, latency=0.0))
    asked = replace(asked, cost=cost)
    how = replace(cost, cluster=replace(cost.cluster, **ERRORS[error])).by(sync="on-demand")
    idle = {b: usage(plan(asked, b).schedules, how).idle() for b in ("lb-mini", "lb-robust")}
    schedules = plan(asked, "pool").schedules
    idle["pool"] = benchmark.pedantic(lambda: usage(schedules, how), rounds=1).idle()
    print(f"\n{error}: " + ", ".join(f"{balancer} {share:.2%} idle" for balancer, share in idle.items()))
    benchmark.extra_info |= idle
    assert idle["pool"] <= 0.01
    assert min(idle.values()) == idle["pool"] <= 0.25 * idle["lb-robust"]


def test_a_thousand_ways_to_run(benchmark):
    """A search of whole runs: a thousand in less than a minute on two cores."""
    trace = load("lognormal:median=1500,sigma=0.9,max=8192")
    asked = Question(trace=trace, model="qwen3-8b", global_batch=128, epochs=3, minibatches=96)
    wish = Wish(asked, ("h100", "a100", "h200", "b200"), (8, 16, 32, 64))
    advice = benchmark.pedantic(searched, (wish,), rounds=1)
    ways = sum(offer.ways for offer in advice.offers)
    assert ways >= 1000
    assert len(advice.offers) == 16
    benchmark.extra_info["ways"] = ways
    assert benchmark.disabled or benchmark.stats["min"] <= 60 * ways / 1000
