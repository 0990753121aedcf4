"""Every balancer under every sync that can run it, on the same minibatches: balance, simulate, compare."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from odcsim import balance, memory, simulation, summary
from odcsim.metrics import Usage
from odcsim.program import SYNCS, sync_named
from odcsim.schedule import ScheduleFile
from odcsim.setting import Setting, plan
from odcsim.simulation import Simulation
from odcsim.summary import REFERENCE, Measured, Row


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows, what they answer, and how far their seconds can be trusted."""

    setting: Setting
    executor: str
    fidelity: str
    rows: tuple[Row, ...]
    usages: tuple[Usage, ...] = field(repr=False)
    price: float | None = None
    memory_limit: float | None = None  # bytes of one GPU, where known

    def row(self, balancer: str, sync: str) -> Row:
        return next(r for r in self.rows if (r.balancer, r.sync) == (balancer, sync))

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "inputs": inputs(self),
            "fidelity": self.fidelity,
            "rows": [r.as_json() for r in self.rows],
        }


def pairs() -> list[tuple[str, str]]:
    """Every (balancer, sync) that can run."""
    return [(b, s) for b in balance.NAMES for s in SYNCS if balance.runs_with(b, s)]


def compare(
    setting: Setting,
    *,
    executor: str = "analytic",
    price: float | None = None,
    memory_limit: float | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Comparison:
    """`advance` is called once for each (balancer, sync) that is done."""
    plans: dict[str, ScheduleFile] = {}
    rows, usages = [], []
    profile = setting.cost.profile
    for balancer, sync in pairs():
        if balancer not in plans:
            plans[balancer] = plan(setting, balancer)
        measured = measure(plans[balancer], Simulation(setting.cost, sync, executor, seed=setting.seed))
        row = summary.row(measured, profile.low, profile.high, price)
        rows.append(_with_memory(row, setting, plans[balancer], memory_limit))
        usages.append(measured.usage)
        advance()
    compared = summary.compared(rows, [u.makespan for u in usages], setting.seed)
    fidelity = simulation.fidelity(setting.cost, plans["native"].schedules)
    return Comparison(setting, executor, fidelity, compared, tuple(usages), price, memory_limit)


def measure(file: ScheduleFile, how: Simulation) -> Measured:
    """One (balancer, sync), measured."""
    usage = simulation.usage(file.schedules, how)
    samples, tokens = simulation.carried(file.schedules)
    return Measured(file.header.balancer, how.sync, usage, samples, tokens, file.header.devices)


def _with_memory(row: Row, setting: Setting, file: ScheduleFile, limit: float | None) -> Row:
    sync = sync_named(row.sync)
    tokens = max(
        sum(s.lengths[i] for i in microbatch) for s in file.schedules for device in s.devices for microbatch in device
    )
    estimate = memory.estimate(
        setting.cost.model,
        setting.cost.cluster.devices,
        tokens,
        full_gradients=not sync.push_every_microbatch,
        one_sided=not sync.meets,
    )
    return replace(row, memory_bytes=estimate.total, memory_fits=None if limit is None else estimate.total <= limit)


def inputs(comparison: Comparison) -> dict[str, Any]:
    """What was asked, in the words of the command line."""
    setting, cluster = comparison.setting, comparison.setting.cost.cluster
    return {
        "trace": setting.trace.name,
        "trace_samples": setting.trace.size,
        "trace_origin": setting.trace.origin,
        "model": setting.cost.model.name,
        "gpu": setting.cost.profile.gpu,
        "cost": setting.cost.profile.origin,
        "devices": cluster.devices,
        "devices_per_node": cluster.devices_per_node,
        "minibatch": setting.minibatch,
        "max_tokens": setting.limit,
        "minibatches": setting.minibatches,
        "seed": setting.seed,
        "in_order": setting.in_order,
        "price": comparison.price,
        "executor": comparison.executor,
    }


def question(comparison: Comparison) -> str:
    """What was asked, in one sentence."""
    setting, about = comparison.setting, inputs(comparison)
    nodes = setting.cost.cluster.nodes
    where = f"{about['devices']} x {about['gpu']}" + (f" in {nodes} nodes" if nodes > 1 else "")
    trace = f"{about['trace']} ({about['trace_samples']:,} samples, longest {setting.trace.longest:,} tokens)"
    size = f"{setting.minibatch} samples per device and step, at most {setting.limit:,} tokens in a microbatch"
    return f"{about['model']} on {where}, {trace}, {size}, {setting.minibatches} minibatches"


def headline(comparison: Comparison) -> list[str]:
    """The answer in plain words: what on-demand brings here, how much of it is the balancer, and how sure that is."""
    best = max((r for r in comparison.rows if r.sync == "on-demand"), key=lambda r: r.speedup or 0)
    rival = max((r for r in comparison.rows if r.sync == REFERENCE[1]), key=lambda r: r.speedup or 0)
    profile, name = comparison.setting.cost.profile, f"on-demand + {best.balancer}"
    reference = f"{best.speedup:.2f} x collective + lb-micro"
    if (best.speedup_low or 0) > 1:
        split = f"{best.sync_gain:.2f} x from the sync, {best.balancer_gain:.2f} x from the balancer"
        idle = f"idle {comparison.row(*REFERENCE).idle:.0%} -> {best.idle:.0%}"
        answer = f"{name}: {reference} ({split}), {idle}"
    else:
        answer = f"on-demand brings nothing here: {name} is {reference}"
    return [
        answer,
        f"against the best collective row ({rival.balancer}): {best.speedup_best_collective:.2f} x",
        f"seconds: {comparison.fidelity}, the truth within {profile.low:g} to {profile.high:g} times; {profile.origin}",
        f"lengths: {comparison.setting.trace.origin}",
    ]
