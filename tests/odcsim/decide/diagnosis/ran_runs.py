"""Runs whose truth is known: schedules on a true cost become what would have been seen of them."""

from dataclasses import replace

import numpy as np

import odcsim
from odcsim.cost import Cost, Load
from odcsim.decide import room
from odcsim.decide.diagnosis.outcome import PARTS, Breakdown, RankFound, StepPart
from odcsim.decide.setting import assign, draw_minibatches
from odcsim.executors import simulation
from odcsim.measurements import Transfer
from odcsim.observed.run import RanMicrobatch, RanStep, SeenRun

ASKED = {"model": "qwen3-1.7b", "gpu": "h100"}
COMPUTED = ("embed", "head", "embed backward")


def setting_of(trace="lognormal:median=2000,sigma=1.1,max=16384", **words):
    usual = ASKED | {"devices": 8, "minibatch": 6, "minibatches": 12, "max_tokens": 16384}
    return odcsim.ask(trace, **(usual | words))


def computed(cost: Cost, schedules):
    """Seconds of compute [microbatch, step, device]."""
    load = Load.of(cost.model, schedules)
    program = cost.program(len(load.tokens))
    table = dict(zip(program.durations, cost.durations(program, load), strict=True))
    layers = cost.model.layers
    return [
        layers * (table["forward", m] + table["backward", m]) + sum(table[name, m] for name in COMPUTED)
        for m in range(len(load.tokens))
    ]


def transfers(cost: Cost, devices: int):
    moved = cost.transfers(one_sided=False)
    sizes = cost.model.layer_parameters, cost.model.root_parameters
    for kind, name, each in (("all-gather", "gather", 2), ("reduce-scatter", "push", cost.recipe.sent)):
        for size, unit in zip(sizes, ("layer", "root"), strict=True):
            for _ in range(2):
                yield Transfer(kind, devices, each * size, moved[f"{name} {unit}"])


def run_of(setting, sync="collective", balancer="native", *, rests="lengths", beside=0.0, pads=False):
    """What is seen of a run of this setting. `beside`: seconds of each step that its data loader takes."""
    cost = room.under(setting.cost, sync)
    schedules = assign(setting, balancer, draw_minibatches(setting)).schedules
    bare = assign(setting, "batches", draw_minibatches(setting)).schedules if pads else schedules
    spans = simulation.usage(schedules, cost, seed=setting.seed).makespan + beside
    every = computed(cost, schedules)
    steps = []
    for number, (ran, own) in enumerate(zip(schedules, bare, strict=True)):
        held = []
        for rank, (padded, device) in enumerate(zip(ran.devices, own.devices, strict=True)):
            for m, (full, samples) in enumerate(zip(padded, device, strict=True)):
                lengths = tuple(own.lengths[i] for i in samples)
                seconds = float(every[m][number, rank])
                known = {"lengths": {"lengths": lengths}, "tokens": {"tokens": sum(lengths)}, "seconds": {}}[rests]
                held.append(RanMicrobatch(rank, m, seconds, computed=ran.tokens(full), **known))
        steps.append(RanStep(number, float(spans[number]), tuple(held)))
    devices = setting.cost.cluster.gpus
    moved = tuple(transfers(cost, devices))
    update = cost.transfers(one_sided=False)["optimizer"]
    ranks = tuple(range(devices))
    return SeenRun(
        "a run", devices, ranks, tuple(steps), sync, setting.cost.model.layers, transfers=moved, updates=(update,) * 3,
        rests=rests,
    )  # fmt: skip


def found_of(run, paces=(), **by_step):
    """No more than what is said of it."""
    seconds = float(np.mean([step.seconds for step in run.steps]))
    every = {name: np.array(by_step.get(name, np.zeros(len(run.steps)))) for name in PARTS}
    parts = tuple(StepPart(n, float(v.mean()), float(v.mean()) / seconds, 0.0, 1.0) for n, v in every.items())
    known = dict(paces)
    ranks = tuple(RankFound(rank, 0.0, 0.0, known.get(rank, 1.0), 0.0) for rank in run.seen)
    return Breakdown(parts, ranks, (), every)


def truly(setting, balancer, sync, max_tokens=0):
    """Seconds of each step in which another way deals it, on the true cost."""
    at = replace(setting, max_tokens=max_tokens or setting.max_tokens)
    schedules = assign(at, balancer, draw_minibatches(setting)).schedules
    return simulation.usage(schedules, room.under(at.cost, sync), seed=at.seed).makespan


def slowed(setting, rank, pace):
    cost = setting.cost
    return replace(setting, cost=replace(cost, cluster=replace(cost.cluster, slow=((rank, pace),))))
