"""A question in full: these lengths, this model on this cluster, minibatches of this size. And its schedules."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim import catalog
from odcsim.answer import Printable
from odcsim.balance.balancer import Work, heaviest_first
from odcsim.balance.refine import scenarios
from odcsim.catalog import fits
from odcsim.cluster import GPU, Cluster, cluster_of, read_cluster
from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.executors.simulation import makespans
from odcsim.neighbours import named
from odcsim.profile import TRANSFERS, Profile
from odcsim.program import SYNC_TABLE
from odcsim.question import Question, Terms
from odcsim.recipe import USUAL, Recipe
from odcsim.schedule import NOTHING, Flat, Header, Schedule, ScheduleFile
from odcsim.support.values import expect
from odcsim.trace import Trace

SORTED = 50  # batches of one device whose samples are sorted by length together
MEET = tuple(name for name, sync in SYNC_TABLE.items() if sync.meets)


@dataclass(frozen=True, slots=True, repr=False)
class Setting(Printable, Terms):
    """A question whose names have become values: the lengths, and what things cost."""

    trace: Trace
    cost: Cost
    minibatch: int  # samples per device
    max_tokens: int = 0  # of a microbatch; 0 stands for the longest sample of the trace
    model_asked: str = ""  # as somebody named it
    each: int = 0  # samples of a microbatch, of who counts them and not their tokens
    global_batch: int = 0  # samples of all devices together, where those were asked for
    stepped: bool = False  # a minibatch is what one recorded step held, of a run that exists
    limits_tried: int = 0  # of which the limit was chosen; 0: somebody gave it, or it is the longest sample
    sharded_by: str = ""  # the rule's reason for the sharding, where nodes are several and nobody chose
    question: Question | None = field(default=None, compare=False)  # that it came of, with its lengths read

    @property
    def limit(self) -> int:
        return self.max_tokens or self.trace.fullest

    @property
    def batch(self) -> int:
        """Samples of a step, of all workers."""
        return self.minibatch * self.cost.workers

    @property
    def alike(self) -> int:
        """Samples that are sorted by length together: some batches of one device, of which not even four groups may be
        left of few samples (transformers 5.24: `get_length_grouped_indices`)."""
        few = self.trace.bundles.size // (4 * self.minibatch)
        return max(1, min(few, SORTED)) * self.minibatch if self.group_by_length else 0

    @property
    def device_tokens(self) -> float:
        """Tokens of a device in a minibatch, on average."""
        return self.trace.bundles.mean * self.minibatch

    def check(self) -> None:
        """Refuse a sample over the token limit, by name; or samples that stay together."""
        dealt = self.trace.bundles
        if dealt.longest <= self.limit:
            return
        over = dealt.lengths > self.limit
        row = int(np.argmax(over if dealt.counts is None else over & (dealt.counts > 0)))
        kind = "bundle" if self.trace.bundle is not None and dealt.unit == "sample" else dealt.unit
        raise InputError(
            f"{kind} {row} has {dealt.lengths[row]:,} tokens, over --max-tokens {self.limit:,}",
            where=dealt.name,
            fix=f"raise the limit to {dealt.longest:,}, the longest {kind}, or see --truncate and --drop-over",
        )

    def draw(self) -> list[NDArray[np.int64]]:
        """The sample ids of every minibatch: the same for every balancer."""
        self.check()
        if self.stepped:
            return self.trace.steps[: self.minibatches]
        batch, count = self.batch, self.minibatches
        return self.trace.minibatches(batch, count, seed=self.seed, in_order=self.in_order, alike=self.alike)


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
    recipe.check_quantization()
    shape = catalog.model(model)
    hardware = catalog.gpu(gpu) if gpu else None
    fit = fits.profile_for(shape, hardware, devices, profile, recipe)
    return Cost(shape, fit, cluster_for(hardware, fit, devices, devices_per_node, cluster), recipe)


def cluster_for(gpu: GPU | None, fit: Profile, devices: int, devices_per_node: int | None, path: str | None) -> Cluster:
    """The GPU's usual cluster, or one node of the machine that the profile measured transfers on."""
    moved = devices == 1 or any(t.kind in TRANSFERS for t in fit.timings)
    measured = gpu is None and bool(fit.timings) and moved and fit.gpu.lower() not in catalog.gpu_names()
    if measured and devices_per_node is None:
        slowest = max(t.per_byte for t in fit.timings)
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
    starts: NDArray[np.int64] | None = None  # of bundles, where samples stay together

    @cached_property
    def bundles(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """What is dealt: tokens, and the two parts of their seconds."""
        if self.starts is None:
            return self.lengths, self.linear, self.quadratic
        tokens, linear, quadratic = (
            np.add.reduceat(of, self.starts) for of in (self.lengths, self.linear, self.quadratic)
        )
        return tokens, linear, quadratic

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        _, linear, quadratic = self.bundles
        return linear + quadratic

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """From the heaviest down, which all balancers by cost start from."""
        return heaviest_first(self.weights, self.bundles[0])


def draw_minibatches(setting: Setting) -> list[Drawn]:
    return [draw_minibatch(setting, ids) for ids in setting.draw()]


def draw_minibatch(setting: Setting, ids: NDArray[np.int64]) -> Drawn:
    """The minibatch of these samples."""
    trace = setting.trace
    lengths = trace.take(ids)
    loss = () if trace.loss is None else tuple(trace.loss[trace.rows(ids)].tolist())
    unassigned = Schedule(tuple(lengths.tolist()), NOTHING, samples=tuple(ids.tolist()), loss=loss)
    starts = None if trace.bundle is None else trace.starts(ids)
    linear, quadratic = setting.cost.sample_parts(lengths)
    return Drawn(lengths, linear, quadratic, unassigned, starts)


def plan(setting: Setting, balancer: str, *, advance: Callable[[], None] = lambda: None) -> ScheduleFile:
    """The schedules of one balancer. `advance` is called once for each minibatch that is done."""
    expect(setting, Setting, "question", "odcsim.ask")
    return assign(setting, balancer, draw_minibatches(setting), advance=advance).sealed()


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
    cost, dealer, profile = setting.cost, named(balancer), setting.cost.profile
    known: dict[str, Any] = {"each": setting.each}  # what it may look at, the same for all minibatches
    if dealer.weighs_transfers:
        alone = dealer.free_counts  # none but on-demand can run it; else the syncs that meet are what it is for
        known["constant"], known["seconds"] = cost.microbatch_times(one_sided=alone)

    def schedule(drawn: Drawn, flat: Flat, waiting: Flat) -> Schedule:
        if drawn.starts is not None:  # what was dealt in bundles, in samples
            flat, waiting = (of.opened(drawn.starts, len(drawn.lengths)) for of in (flat, waiting))
        dealt = drawn.unassigned.dealt(flat, waiting)
        return dealer.pads(dealt, setting.limit) if dealer.pads else dealt

    schedules, rivals = list[Schedule](), dict[int, Schedule]()
    for number, drawn in enumerate(minibatches):
        tokens, linear, quadratic = drawn.bundles
        work = Work(tokens, drawn.weights, cost.workers, setting.limit, order=drawn.order, **known)
        if dealer.scenarios:
            work = replace(work, scenarios=scenarios(linear, quadratic))
        deal = dealer.assign(work)
        schedules.append(schedule(drawn, deal.flat, deal.waiting))
        if exactly and deal.rival is not None:
            rivals[number] = schedule(drawn, deal.rival, deal.waiting)
        advance()
    for number in sooner(cost, rivals, schedules):
        schedules[number] = rivals[number]
    header = Header(
        balancer=balancer,
        model=cost.model.name,
        weights=f"{profile.fidelity}: {profile.origin}",
        max_tokens=setting.limit,
        devices=cost.workers,
        seed=setting.seed,
        trace=setting.trace.name,
        in_order=setting.in_order,
    )
    return ScheduleFile(header, tuple(schedules))


def sooner(cost: Cost, rivals: Mapping[int, Schedule], schedules: Sequence[Schedule]) -> list[int]:
    """The numbers of the minibatches whose rival is ahead under any sync that meets: dealt there, it is never behind.

    On devices as planned, since nobody knows beforehand what is drawn.
    """
    if not rivals:
        return []
    ways = {cost.by(sync=sync, exchange=exchange).ran for sync in MEET for exchange in ("end", "layers")}
    both = [*rivals.values(), *(schedules[n] for n in rivals)]  # in one row: those of like shape are simulated at once
    ahead = np.zeros(len(rivals), dtype=bool)
    for recipe in ways:
        theirs, ours = makespans(both, replace(cost.calm, recipe=recipe)).reshape(2, -1)
        ahead |= theirs < ours
    return [number for number, is_ahead in zip(rivals, ahead, strict=True) if is_ahead]
