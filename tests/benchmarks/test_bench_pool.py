"""What the queue of `pool` levels: idle where samples take other times than planned, or one device is slow.

64 devices, 8 samples each, seconds of the published 7B fit without what a microbatch costs by itself, no transfers:
idle is what the plan and its errors cause. By the discrete-event executor.

    pytest tests/benchmarks/test_bench_pool.py --benchmark-only -o addopts="" -s
"""

from dataclasses import replace

import pytest

from odcsim.decide.asking import ask
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import Simulation, usage

LENGTHS = "lognormal:median=11900,sigma=0.9,max=65536"
MINIBATCHES = 5
ERRORS = {"5 % noise": {"sample_noise": 0.05}, "a device 10 % slow": {"slow": ((3, 1.1),)}}


def setting(devices: int = 64, minibatch: int = 8) -> Setting:
    sizes = {"devices": devices, "minibatch": minibatch, "minibatches": MINIBATCHES, "devices_per_node": devices}
    found = ask(LENGTHS, "r1-distill-qwen-7b", gpu="a100", **sizes)
    cost = found.cost
    fit = replace(cost.profile, overhead=0.0, microbatch=0.0, fewest=0)
    quiet = replace(cost, profile=fit, cluster=replace(cost.cluster, latency=0.0))
    return replace(found, cost=quiet)


@pytest.mark.parametrize("error", ERRORS)
def test_a_queue_levels_what_was_not_planned(benchmark, error):
    """At most 1 % idle with a queue, several times as much without."""
    asked = setting()
    cluster = replace(asked.cost.cluster, **ERRORS[error])
    how = Simulation(replace(asked.cost, cluster=cluster), "on-demand", "des")
    idle = {b: usage(plan(asked, b).schedules, how).idle() for b in ("lb-mini", "lb-robust")}
    schedules = plan(asked, "pool").schedules
    idle["pool"] = benchmark.pedantic(lambda: usage(schedules, how), rounds=1).idle()
    print(f"\n{error}: " + ", ".join(f"{balancer} {share:.2%} idle" for balancer, share in idle.items()))
    benchmark.extra_info |= idle
    assert idle["pool"] <= 0.01
    assert min(idle.values()) == idle["pool"] <= 0.25 * idle["lb-robust"]
