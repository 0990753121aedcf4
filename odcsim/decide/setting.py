"""A question in full: these lengths, this model on this cluster, minibatches of this size. And its schedules."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim import catalog
from odcsim.balance import named
from odcsim.catalog import fits
from odcsim.cluster import GPU, Cluster, cluster_of, read_cluster
from odcsim.cost import Cost
from odcsim.decide.rivals import sooner
from odcsim.errors import InputError
from odcsim.heuristics.balancer import Assigned, Balancer, Work, assigned, heaviest_first
from odcsim.heuristics.scenarios import scenarios
from odcsim.profile import Profile
from odcsim.question import Terms
from odcsim.recipe import USUAL, Recipe
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.trace import Trace


@dataclass(frozen=True, slots=True)
class Setting(Terms):
    """A question whose names have become values: the lengths, and what things cost."""

    trace: Trace
    cost: Cost
    minibatch: int  # samples per device
    max_tokens: int = 0  # of a microbatch; 0 stands for the longest sample of the trace
    limits_tried: int = 0  # of which the limit was chosen; 0: somebody gave it, or it is the longest sample

    @property
    def able(self) -> "Setting":
        """With the executor that knows what its cluster shares and draws, for who asks for none."""
        return replace(self, executor="des") if self.cost.cluster.eventful else self

    @property
    def limit(self) -> int:
        return self.max_tokens or self.trace.longest

    def check(self) -> None:
        """Refuse a sample over the token limit, by name."""
        if self.trace.longest <= self.limit:
            return
        over = self.trace.lengths > self.limit
        row = int(np.argmax(over if self.trace.counts is None else over & (self.trace.counts > 0)))
        raise InputError(
            f"sample {row} has {self.trace.lengths[row]:,} tokens, over --max-tokens {self.limit:,}",
            where=self.trace.name,
            fix=f"raise the limit to {self.trace.longest:,}, the longest sample, or see --truncate and --drop-over",
        )

    def draw(self) -> list[NDArray[np.int64]]:
        """The sample ids of every minibatch: the same for every balancer."""
        self.check()
        samples = self.minibatch * self.cost.cluster.devices
        return self.trace.minibatches(samples, self.minibatches, seed=self.seed, in_order=self.in_order)


def cost_of(
    model: str,
    gpu: str | None,
    profile: str | None,
    devices: int,
    devices_per_node: int | None = None,
    cluster: str | None = None,
    *,
    recipe: Recipe = USUAL,
) -> Cost:
    """What things cost: the model's shape, the best profile at hand, and the cluster."""
    shape = catalog.model(model)
    hardware = catalog.gpu(gpu) if gpu else None
    fit = fits.choose(shape, hardware, devices, profile, recipe)
    return Cost(shape, fit, _cluster(hardware, fit, devices, devices_per_node, cluster), recipe)


def _cluster(gpu: GPU | None, fit: Profile, devices: int, devices_per_node: int | None, path: str | None) -> Cluster:
    """The GPU's usual cluster, or one node of the machine that the profile measured transfers on."""
    if gpu is None and fit.timings and devices_per_node is None and fit.gpu.lower() not in catalog.gpu_names():
        slowest = max((t.per_byte for t in fit.timings), default=0.0)
        rate = 1 / slowest if slowest else math.inf  # for a kind of transfer that was not measured
        usual = Cluster(devices, devices, rate, rate, devices)
    else:
        usual = cluster_of(gpu or catalog.gpu(fit.gpu), devices, devices_per_node)
    return read_cluster(path, usual) if path else usual


@dataclass(frozen=True)
class Drawn:
    """A minibatch before it is balanced: the same for every balancer."""

    lengths: NDArray[np.int64]
    linear: NDArray[np.float64]  # the two parts of each sample's seconds
    quadratic: NDArray[np.float64]
    unassigned: Schedule

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        return self.linear + self.quadratic

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """From the heaviest down, which all balancers by cost start from."""
        return heaviest_first(self.weights, self.lengths)


def drawn(setting: Setting) -> list[Drawn]:
    return [drawn_of(setting, ids) for ids in setting.draw()]


def drawn_of(setting: Setting, ids: NDArray[np.int64]) -> Drawn:
    """The minibatch of these samples."""
    trace = setting.trace
    lengths = trace.take(ids)
    loss = () if trace.loss is None else tuple(trace.loss[trace.rows(ids)].tolist())
    unassigned = Schedule(tuple(lengths.tolist()), (), tuple(ids.tolist()), loss)
    return Drawn(lengths, *setting.cost.sample_parts(lengths), unassigned)


def plan(setting: Setting, balancer: str, *, advance: Callable[[], None] = lambda: None) -> ScheduleFile:
    """The schedules of one balancer. `advance` is called once for each minibatch that is done."""
    return assign(setting, balancer, drawn(setting), advance=advance).sealed()


def assign(
    setting: Setting,
    balancer: str,
    minibatches: Sequence[Drawn],
    *,
    advance: Callable[[], None] = lambda: None,
    exactly: bool = True,
) -> ScheduleFile:
    """The schedules of one balancer for drawn minibatches, without the digest, which no simulation needs.

    Not `exactly`: a balancer with a rival deals by its own estimate, as is enough for a search.
    """
    schedules, rivals, chosen = list[Schedule](), dict[int, Schedule](), named(balancer)
    known = _known(setting, chosen)
    for number, minibatch in enumerate(minibatches):
        deal = assigned(chosen, _work(setting, chosen, minibatch, known))
        schedules.append(_schedule(setting, minibatch, deal))
        if exactly and deal.rival is not None:
            rivals[number] = schedules[-1].dealt(deal.rival)
        advance()
    for number in sooner(setting.cost, rivals, schedules):
        schedules[number] = rivals[number]
    return ScheduleFile(_header(setting, balancer), tuple(schedules))


def _work(setting: Setting, balancer: Balancer, drawn: Drawn, known: Mapping[str, Any]) -> Work:
    work = Work(drawn.lengths, drawn.weights, setting.cost.cluster.devices, setting.limit, order=drawn.order, **known)
    return replace(work, scenarios=scenarios(drawn.linear, drawn.quadratic)) if balancer.scenarios else work


def _schedule(setting: Setting, drawn: Drawn, deal: Assigned) -> Schedule:
    overhead = (setting.split_overhead or 0.0) if deal.gangs else 0.0
    return drawn.unassigned.dealt(deal.flat, deal.waiting, deal.gangs, overhead)


def _known(setting: Setting, balancer: Balancer) -> dict[str, Any]:
    """What the balancer may look at beside a minibatch, the same for all of them: no more than it says it does."""
    cost, known = setting.cost, dict[str, Any]()
    if balancer.weighs_transfers:
        alone = balancer.free_counts  # none but on-demand can run it; else the syncs that meet are what it is for
        known["constant"] = cost.microbatch_seconds(one_sided=alone)
        known["seconds"] = cost.microbatch_times(one_sided=alone)
    if balancer.gangs:
        known |= {"node": cost.cluster.devices_per_node, "split_overhead": setting.split_overhead}
    return known


def _header(setting: Setting, balancer: str) -> Header:
    profile = setting.cost.profile
    return Header(
        balancer=balancer,
        model=setting.cost.model.name,
        weights=f"{profile.fidelity}: {profile.origin}",
        max_tokens=setting.limit,
        devices=setting.cost.cluster.devices,
        seed=setting.seed,
        trace=setting.trace.name,
        in_order=setting.in_order,
    )
