"""Seconds for everything a program names: a profile's fits, or a GPU's rates, applied to what each microbatch holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim import network
from odcsim.cluster import Cluster
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.profile import DTYPES, LOCAL, Polynomial, Profile, ProfileBelow, Timing, stretched
from odcsim.program import SETTLES, Program, sync_named
from odcsim.recipe import USUAL, Recipe
from odcsim.schedule import Schedule

Floats = NDArray[np.float64]
# Parameters travel in bf16 where a profile does not say otherwise, gradients in fp32: FSDP2's usual mixed precision.
GATHER_BYTES, PUSH_BYTES = 2, 4
STEPS = 65  # at which seconds of emptier microbatches are worked out, where somebody asks for about those
_LUCK = 1  # tells the draws of samples' luck from those of jitter


@dataclass(frozen=True, slots=True)
class Load:
    """What the microbatches hold [microbatch, minibatch, device]; nothing where a device has no such microbatch."""

    tokens: Floats
    squares: Floats
    samples: Floats
    counts: NDArray[np.int64]  # microbatches of each device [minibatch, device]

    def only(self, microbatch: int) -> "Load":
        """One microbatch of each device, as if it had no other."""
        here = slice(microbatch, microbatch + 1)
        return Load(self.tokens[here], self.squares[here], self.samples[here], np.clip(self.counts - microbatch, 0, 1))


def load(model: Model, schedules: Sequence[Schedule], luck: Sequence[Floats] = (), *, queues: bool = False) -> Load:
    """What minibatches of like shape hold; the most microbatches of any of them sets the first axis.

    `luck` has for each minibatch how many times as long as planned each of its samples takes. `queues`: the entries of
    the shared queues instead, as microbatches of one device that stands for any.
    """
    flats = [s.waiting if queues else s.flat for s in schedules]
    counts = np.array([flat.counts for flat in flats])
    shape = (int(counts.max(initial=0)), *counts.shape)
    sizes = np.concatenate([flat.sizes for flat in flats])
    # Where each microbatch stands: its number on its device, then the minibatch and the device.
    upto = counts.ravel().cumsum()
    first = np.repeat(upto - counts.ravel(), counts.ravel())
    cell = np.repeat(np.arange(counts.size), counts.ravel())
    place = np.repeat((np.arange(len(first)) - first) * counts.size + cell, sizes)
    # All samples in one row, a minibatch after the other.
    each = [len(s.lengths) for s in schedules]
    begin = np.repeat(np.cumsum(each) - each, counts.sum(axis=1))
    order = np.concatenate([flat.samples for flat in flats]) + np.repeat(begin, sizes)
    lengths = np.concatenate([s.sizes for s in schedules])
    factors = np.concatenate(luck) if luck else np.ones(len(lengths))
    held = (of * factors for of in (lengths, model.squares(lengths), np.ones(len(lengths))))
    tokens, squares, samples = (np.bincount(place, of[order], counts.size * shape[0]).reshape(shape) for of in held)
    return Load(tokens, squares, samples, counts)


@dataclass(frozen=True, slots=True)
class Cost:
    """One model on one cluster by one profile, run as the recipe says."""

    model: Model
    profile: Profile
    cluster: Cluster
    recipe: Recipe = USUAL
    on_demand_cost: float = 0.0  # seconds that on-demand adds to every minibatch, as somebody asked

    def __post_init__(self) -> None:
        if self.profile.recompute != self.recipe.recomputes:
            has, asked = ("with" if again else "without" for again in (self.profile.recompute, self.recipe.recomputes))
            fix = "make them so with odcsim.catalog.estimates.recompute.under"
            raise InputError(f"the profile's seconds are {has} recompute, the recipe is {asked}", fix=fix)
        if self.cluster.gpus % self.holders:
            raise InputError(
                f"--sharding hybrid on {self.cluster.gpus} devices in nodes of {self.cluster.devices_per_node}",
                fix="give a multiple of a node's devices: every node holds all parameters",
            )

    def by(self, **choices: Any) -> "Cost":
        """By another recipe, which differs from this one's in these fields."""
        return replace(self, recipe=self.recipe.by(**choices))

    @property
    def calm(self) -> "Cost":
        """As somebody plans, whom the scan answers: nothing is drawn, and a node's cards are shared out evenly."""
        cluster = self.cluster
        if cluster.shared_links:
            share = cluster.nics_per_node / cluster.devices_per_node
            rate = share * cluster.nic_bandwidth
            cluster = replace(cluster, nics_per_node=cluster.devices_per_node, nic_bandwidth=rate)
        return replace(self, cluster=replace(cluster, jitter=0.0, swing=0.0, sample_noise=0.0))

    def stretched(self, factor: float) -> "Cost":
        """With so many times the seconds of compute."""
        return replace(self, profile=stretched(self.profile, factor))

    @property
    def ran(self) -> Recipe:
        """The recipe as it is run on so many nodes."""
        return self.recipe.on(self.cluster.nodes)

    @property
    def sharded(self) -> str:
        return self.ran.sharding

    def program(self, microbatches: int) -> Program:
        """The steps of a minibatch of at most so many microbatches."""
        return self.ran.program(self.model.layers, microbatches)

    @property
    def workers(self) -> int:
        """Who each run microbatches of their own: every GPU is one."""
        return self.cluster.gpus

    @property
    def holders(self) -> int:
        """How many devices together hold each unit that is gathered and pushed."""
        return self.cluster.devices_per_node if self.sharded == "hybrid" else self.cluster.gpus

    def sample_seconds(self, lengths: NDArray[np.int64]) -> Floats:
        """Compute that each sample brings, without the constants of its microbatch: what balancers weigh."""
        linear, quadratic = self.sample_parts(lengths)
        return linear + quadratic

    def sample_parts(self, lengths: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Seconds of each sample in two parts: what grows with its length or not at all, and what with its square."""
        p, layers, linear = self.profile, self.model.layers, self._token_seconds
        quadratic = layers * (p.forward.quadratic + p.backward.quadratic) + p.head.quadratic + 2 * p.embed.quadratic
        each = layers * (p.forward.sample + p.backward.sample) + p.head.sample + 2 * p.embed.sample
        return linear * lengths.astype(np.float64) + each, quadratic * self.model.squares(lengths)

    @property
    def _token_seconds(self) -> float:
        p = self.profile
        return self.model.layers * (p.forward.linear + p.backward.linear) + p.head.linear + 2 * p.embed.linear

    def microbatch_seconds(self, *, one_sided: bool = True) -> float:
        """What a microbatch takes beside its samples: constants, and the root's transfers."""
        fixed = self.transfers(one_sided)
        return self.microbatch_compute + fixed["overhead"] + fixed["gather root"] + fixed["push root"]

    @property
    def microbatch_compute(self) -> float:
        """What of that is computed."""
        p = self.profile
        layer = p.forward.constant + p.backward.constant
        return self.model.layers * layer + p.head.constant + 2 * p.embed.constant + p.microbatch

    def microbatch_times(self, *, one_sided: bool = True) -> Callable[[float], float]:
        """About what a microbatch of samples that take so long comes to.

        Layers' transfers run beside compute; a pass takes as long as they do where that is longer.
        """
        p, fixed, layers = self.profile, self.transfers(one_sided), self.model.layers
        shown, gather, push = (
            self.microbatch_seconds(one_sided=one_sided),
            layers * fixed["gather layer"],
            layers * fixed["push layer"],
        )
        both = p.forward.linear + p.backward.linear
        first = p.forward.linear / both if both else 0.25  # the forward's share of the samples' work
        again = gather * self.recipe.reshard

        def usual(samples: float) -> float:
            return shown + max(first * samples, gather) + max((1 - first) * samples, again, push)

        fullest = p.fewest if p.joined else max(map(_floored, (p.forward, p.backward)))
        if not fullest:
            return usual
        compute = self.compute(_growing(tokens := np.linspace(0.0, fullest, STEPS)))
        forward, backward = (layers * compute(what, 0)[:, 0] for what in ("forward", "backward"))
        once = shown - self.microbatch_compute + compute("embed", 0) + compute("head", 0) + compute("embed backward", 0)
        weights = self._token_seconds * tokens  # as if all seconds of samples were of tokens
        times = once[:, 0] + np.maximum(forward, gather) + np.maximum(backward, max(again, push))
        return lambda samples: float(np.interp(samples, weights, times)) if samples < weights[-1] else usual(samples)

    def load(self, schedules: Sequence[Schedule], luck: Sequence[Floats] = (), *, queues: bool = False) -> Load:
        """The loads of minibatches of like shape, or of their queues."""
        return load(self.model, schedules, luck, queues=queues)

    def luck(self, schedules: Sequence[Schedule], numbers: Sequence[int], seed: int) -> list[Floats]:
        """Log-normal slow-down of each sample (mean 1), seeded by the minibatch's number.

        So every balancer, sync and executor meets the same draws. None without noise.
        """
        if not self.cluster.sample_noise:
            return []
        sigma = np.sqrt(np.log1p(self.cluster.sample_noise**2))
        rngs = (np.random.default_rng((seed, n, _LUCK)) for n in numbers)
        sizes = [len(schedule.lengths) for schedule in schedules]
        return [r.lognormal(-sigma * sigma / 2, sigma, size) for r, size in zip(rngs, sizes, strict=True)]

    def durations(self, program: Program, load: Load, among: Sequence[int] | None = None) -> Floats:
        """Seconds of every row of the program's table [row, minibatch, device]. A load of one device is everybody's.

        `among`: of these devices alone.
        """
        slow = np.ones(self.workers)
        for device, factor in self.cluster.slow:
            slow[device] = factor
        slow = slow if among is None else slow[list(among)]
        table = np.zeros((len(program.durations), len(load.counts), len(slow)))
        fixed = self.transfers(program.one_sided)
        late = program.one_sided and not sync_named(program.sync).push_every_microbatch
        compute, beside = self.compute(load), self._beside(fixed)
        for row, (what, m) in enumerate(program.durations):
            if m < 0:
                table[row] = fixed[what]
                continue
            if m >= len(load.tokens):
                continue  # nobody has it
            present = (0 if late and what.startswith("push") else m) < load.counts  # who has few pushes all sums, too
            if what in fixed:
                table[row] = np.where(present, fixed[what], 0.0)
            else:
                seconds = compute(what, m)
                if busy := beside.get(what, 0.0):
                    seconds += self.profile.copying * np.minimum(seconds, busy)
                table[row] = np.where(present, seconds * slow, 0.0)
        return table

    def _beside(self, fixed: dict[str, float]) -> dict[str, float]:
        """Seconds for which kernels that move a layer run beside its compute, where they take a part of the device."""
        if not self.profile.copying:
            return {}
        gather = 0.0 if self.recipe.copies == "engines" else fixed["gather layer"]
        return {"forward": gather, "backward": gather * self.recipe.reshard + fixed["push layer"]}

    def compute(self, load: Load) -> Callable[[str, int], Floats]:
        """Seconds of what is computed of each microbatch, by its name and the microbatch's number."""
        own, joined, moved = _fits(self.profile), self.profile.joined, self._moved_inside()
        below = _fits(self.profile.below)

        def seconds(what: str, m: int) -> Floats:
            holds = load.tokens[m], load.squares[m], load.samples[m]
            found = own[what].seconds(*holds)
            if not joined:
                return found
            share = self.profile.share(holds[0])
            emptier = below[what].seconds(*holds)
            if busy := moved.get(what, 0.0):
                emptier = np.maximum(emptier, busy) + self.profile.below.copying * np.minimum(emptier, busy)
            return share * found + (1 - share) * emptier

        return seconds

    def _moved_inside(self) -> dict[str, float]:
        """Seconds of a node's transfers beside each computation, where the profile's own seconds hold them: then those
        that take their place have to."""
        if not (self.profile.joined and self.profile.node_transfers_included):
            return {}
        sizes = self.model.layer_parameters, self.model.root_parameters
        gathered, reduced = DTYPES.get(self.profile.dtype, GATHER_BYTES), self.recipe.sent
        gather, opening = (network.inside(self.cluster, gathered * size, self.holders) for size in sizes)
        push, closing = (network.inside(self.cluster, reduced * size, self.holders) for size in sizes)
        again = gather * self.recipe.reshard + push
        return {"forward": gather, "backward": again, "embed": opening, "embed backward": closing}

    def transfers(self, one_sided: bool) -> dict[str, float]:
        """Seconds of what a program names and no microbatch changes: transfers, meetings, steps of the optimizer."""
        root, layer = self.model.root_parameters, self.model.layer_parameters
        pushed, alone = (self.profile.adapters, 0.0) if self.profile.adapters else (layer, root)
        gathered, reduced = DTYPES.get(self.profile.dtype, GATHER_BYTES), self.recipe.sent
        gather, push = ("gather", "push") if one_sided else ("all-gather", "reduce-scatter")
        meeting = self._constant("meeting", self.cluster.latency) if self.cluster.gpus > 1 else 0.0
        return {
            "overhead": self._constant("overhead", self.profile.overhead),
            "gather root": self._transfer(gather, gathered * root, one_sided),
            "gather layer": self._transfer(gather, gathered * layer, one_sided),
            "push root": self._transfer(push, reduced * alone, one_sided),
            "push layer": self._transfer(
                push, reduced * pushed, one_sided, beside=gathered * layer * self.recipe.reshard
            ),
            "push between nodes": self._between(reduced * (self.model.layers * pushed + alone), one_sided),
            "sum layer": self._summed(reduced * pushed),
            "sum root": self._summed(reduced * alone),
            "gather between nodes": self._between(gathered * self.model.parameters, one_sided),
            "bring layer": self._between(gathered * layer, one_sided),
            "bring root": self._between(gathered * root, one_sided),
            "optimizer": self._constant("optimizer", self.profile.optimizer) * self._states,
            "publish": self._constant("publish", self.profile.publish),
            SETTLES: self._settled(meeting, one_sided),
            "meeting": meeting,
        }

    def _measured(self, kind: str, devices: int) -> Timing | None:
        """What the profile measured of this kind. Of several nodes it knows what it measured on as many devices."""
        found = self.profile.timing(kind, devices)
        exact = any((t.kind, t.devices) == (kind, devices) for t in self.profile.timings)
        return found if exact or devices <= self.cluster.devices_per_node or kind in LOCAL else None

    def _constant(self, kind: str, otherwise: float) -> float:
        found = self._measured(kind, self.cluster.gpus)
        return otherwise if found is None else found.constant

    def _transfer(self, kind: str, size: float, one_sided: bool, beside: float = 0.0) -> float:
        """Seconds to gather or push a unit of `size` bytes: as measured, else by the cluster's rates.

        `beside`: bytes that devices gather meanwhile. A link takes in what its device gathers and what peers push to
        it, so that a one-sided push takes as long as both. Collectives queue behind each other.
        """
        if self.cluster.gpus == 1:
            return 0.0
        if (found := self._measured(kind, self.holders)) is not None:
            return (found.constant + found.per_byte * size) * found.slowdown
        by_rate = network.one_sided if one_sided else network.collective
        return by_rate(
            self.cluster, size + beside * one_sided, self.holders, inside=not self.profile.node_transfers_included
        )

    def _settled(self, meeting: float, one_sided: bool) -> float:
        """What the end of a minibatch takes beside bytes, until all have met."""
        if self.cluster.gpus == 1:
            return 0.0
        return self._constant("settle", meeting) + self.on_demand_cost * one_sided

    @property
    def _states(self) -> int:
        """How many times its share of the states a device steps: every node has all of them where all get the sums."""
        return self.cluster.nodes if self.ran.exchange == "layers" else 1

    def _summed(self, size: float) -> float:
        """Seconds in which all nodes get the sums of a unit: reduced between them, and gathered again."""
        return 2 * network.exchange(self.cluster, size, collective=True) if self.cluster.nodes > 1 else 0.0

    def _between(self, size: float, one_sided: bool) -> float:
        """Seconds in which all devices of a node take in their parts of `size` bytes that other nodes have."""
        return network.exchange(self.cluster, size, collective=not one_sided)


def _growing(tokens: Floats) -> Load:
    """Minibatches of one microbatch on one device, which hold so many tokens, and hardly any squares."""
    holds = tokens.reshape(1, -1, 1)
    return Load(holds, 0 * holds, np.ones_like(holds), np.ones((len(tokens), 1), dtype=np.int64))


def _floored(of: Polynomial) -> float:
    """Tokens up to which launching takes longer."""
    return max(0.0, (of.floor - of.constant) / of.linear) if of.linear else 0.0


def _fits(of: Profile | ProfileBelow) -> dict[str, Polynomial]:
    """What each computation of a microbatch takes, by its name."""
    opening = replace(of.embed, constant=of.embed.constant + of.microbatch)
    passes = {"forward": of.forward, "head": of.head, "backward": of.backward}
    return {"embed": opening, **passes, "embed backward": of.embed}
