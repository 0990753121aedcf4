"""Idle where a plan is not enough: samples that take other times than planned, and a slow device.

A part of what `python docs/studies/balancing.py` writes. Compute alone, by the published fit for 7B without what a
microbatch costs by itself; the simulators' own executors run the queues.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from odcsim.decide.asking import ask
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import usage
from odcsim.results.metrics import Usage

DEVICES, MINIBATCH, MINIBATCHES = 64, 8, 5
ERRORS = {"5 % noise": {"sample_noise": 0.05}, "one device 10 % slow": {"slow": ((3, 1.1),)}}
QUEUES = ("lb-robust", "pool")


def head() -> list[str]:
    """The columns of `rows`."""
    return ["idle in %", *(f"{error}: `{name}`" for error in ERRORS for name in QUEUES)]


def rows(sources: Mapping[str, str | Path]) -> list[list[str]]:
    return [[name, *(f"{100 * share:.1f}" for share in shares(source))] for name, source in sources.items()]


def shares(source: str | Path) -> list[float]:
    """Idle under each error and balancer."""
    asked = setting(source)
    return [run(asked, name, error).idle() for error in ERRORS.values() for name in QUEUES]


def setting(source: str | Path) -> Setting:
    sizes = {"devices": DEVICES, "minibatch": MINIBATCH, "minibatches": MINIBATCHES, "devices_per_node": DEVICES}
    found = ask(str(source), "r1-distill-qwen-7b", gpu="a100", **sizes)
    cost = found.cost
    quiet = replace(
        cost, profile=replace(cost.profile, microbatch=0.0, fewest=0), cluster=replace(cost.cluster, latency=0.0)
    )
    return replace(found, cost=quiet)


def run(asked: Setting, name: str, error: Mapping[str, object]) -> Usage:
    cost = replace(asked.cost, cluster=replace(asked.cost.cluster, **error))
    return usage(plan(asked, name).schedules, cost.by(sync="on-demand"))
