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
from odcsim.profile import DTYPES, LOCAL, Polynomial, Profile, ProfileBelow, Timing
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

    @classmethod
    def of(
        cls, model: Model, schedules: Sequence[Schedule], luck: Sequence[Floats] = (), *, queues: bool = False
    ) -> "Load":
        """What minibatches of like shape hold; the most microbatches of any of them sets the first axis.

        `luck` has for each minibatch how many times as long as planned each of its samples takes. `queues`: the entries
        of the shared queues instead, as microbatches of one device that stands for any.
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
        return cls(tokens, squares, samples, counts)

    def only(self, microbatch: int) -> "Load":
        """One microbatch of each device, as if it had no other."""
        here = slice(microbatch, microbatch + 1)
        return Load(self.tokens[here], self.squares[here], self.samples[here], np.clip(self.counts - microbatch, 0, 1))


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
    def pace(self) -> Floats:
        """How many times as long the compute of each worker takes."""
        pace = np.ones(self.workers)
        for worker, times in self.cluster.slow:
            pace[worker] = times
        return pace

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
        linear, each, quadratic = map(self._in_all, ("linear", "sample", "quadratic"))
        return linear * lengths.astype(np.float64) + each, quadratic * self.model.squares(lengths)

    def _in_all(self, coefficient: str) -> float:
        """What the computations of a microbatch come to: each layer's, the head's, and the embedding's both ways."""
        p = self.profile
        forward, backward, head, embed = (getattr(of, coefficient) for of in (p.forward, p.backward, p.head, p.embed))
        return float(self.model.layers * (forward + backward) + head + 2 * embed)

    def microbatch_times(self, *, one_sided: bool) -> tuple[float, Callable[[float], float]]:
        """What a microbatch takes beside its samples (constants, and the root's transfers), and about what one comes to
        whose samples take so long.

        Layers' transfers run beside compute; a pass takes as long as they do where that is longer.
        """
        p, fixed, layers = self.profile, self.transfers(one_sided), self.model.layers
        beside = fixed["overhead"] + fixed["gather root"] + fixed["push root"]
        empty = self._in_all("constant") + p.microbatch + beside
        gather, push = layers * fixed["gather layer"], layers * fixed["push layer"]
        again = gather * self.recipe.reshard
        both = p.forward.linear + p.backward.linear
        first = p.forward.linear / both if both else 0.25  # the forward's share of the samples' work

        def usual(samples: float) -> float:
            return empty + max(first * samples, gather) + max((1 - first) * samples, again, push)

        # Below so many tokens launching takes longer than a pass, or other seconds hold.
        launched = ((of.floor - of.constant) / of.linear for of in (p.forward, p.backward) if of.linear)
        fullest = p.fewest if p.joined else max(launched, default=0.0)
        if fullest <= 0:
            return empty, usual
        tokens = np.linspace(0.0, fullest, STEPS)
        # Minibatches of one microbatch on one device, which hold so many tokens, and hardly any squares.
        holds = tokens.reshape(1, -1, 1)
        alone = Load(holds, 0 * holds, np.ones_like(holds), np.ones((STEPS, 1), dtype=np.int64))
        compute = self.compute(alone)
        forward, backward = (layers * compute(what, 0)[:, 0] for what in ("forward", "backward"))
        once = sum(compute(what, 0)[:, 0] for what in ("embed", "head", "embed backward"))
        times = beside + once + np.maximum(forward, gather) + np.maximum(backward, max(again, push))
        weights = self._in_all("linear") * tokens  # as if all seconds of samples were of tokens

        def emptier(samples: float) -> float:
            return float(np.interp(samples, weights, times)) if samples < weights[-1] else usual(samples)

        return empty, emptier

    def luck(self, schedules: Sequence[Schedule], numbers: Sequence[int], seed: int) -> list[Floats]:
        """Log-normal slow-down of each sample (mean 1), seeded by the minibatch's number.

        So every balancer, sync and executor meets the same draws. None without noise.
        """
        if not self.cluster.sample_noise:
            return []
        sigma = np.sqrt(np.log1p(self.cluster.sample_noise**2))
        drawn = ((np.random.default_rng((seed, n, _LUCK)), s) for n, s in zip(numbers, schedules, strict=True))
        return [rng.lognormal(-sigma * sigma / 2, sigma, len(s.lengths)) for rng, s in drawn]

    def durations(self, program: Program, load: Load, among: Sequence[int] | None = None) -> Floats:
        """Seconds of every row of the program's table [row, minibatch, device]. A load of one device is everybody's.

        `among`: of these devices alone.
        """
        slow = self.pace if among is None else self.pace[list(among)]
        table = np.zeros((len(program.durations), len(load.counts), len(slow)))
        fixed, compute, copying = self.transfers(program.one_sided), self.compute(load), self.profile.copying
        # Kernels that move a layer run beside its compute and take a part of the device, unless engines copy.
        gather = 0.0 if self.recipe.copies == "engines" else fixed["gather layer"]
        beside = {"forward": gather, "backward": gather * self.recipe.reshard + fixed["push layer"]} if copying else {}
        late = program.one_sided and not sync_named(program.sync).push_every_microbatch
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
                    seconds += copying * np.minimum(seconds, busy)
                table[row] = np.where(present, seconds * slow, 0.0)
        return table

    def compute(self, load: Load) -> Callable[[str, int], Floats]:
        """Seconds of what is computed of each microbatch, by its name and the microbatch's number."""
        p, below, joined = self.profile, self.profile.below, self.profile.joined
        own, other = _fits(p), _fits(below)
        moved: dict[str, float] = {}
        if joined and p.node_transfers_included:
            # The profile's own seconds hold a node's transfers: those that take their place have to.
            units = self.model.layer_parameters, self.model.root_parameters
            gather, opening = (network.inside(self.cluster, self._gathered * of, self.holders) for of in units)
            push, closing = (network.inside(self.cluster, self.recipe.sent * of, self.holders) for of in units)
            again = gather * self.recipe.reshard + push
            moved = {"forward": gather, "backward": again, "embed": opening, "embed backward": closing}

        def seconds(what: str, m: int) -> Floats:
            holds = load.tokens[m], load.squares[m], load.samples[m]
            found = own[what].seconds(*holds)
            if not joined:
                return found
            emptier = other[what].seconds(*holds)
            if busy := moved.get(what, 0.0):
                emptier = np.maximum(emptier, busy) + below.copying * np.minimum(emptier, busy)
            share: Floats = np.clip(2 * holds[0] / p.fewest - 1, 0.0, 1.0)  # that is the profile's own
            return share * found + (1 - share) * emptier

        return seconds

    @property
    def _gathered(self) -> int:
        """Bytes of a parameter on its way."""
        return DTYPES.get(self.profile.dtype, GATHER_BYTES)

    def transfers(self, one_sided: bool) -> dict[str, float]:
        """Seconds of what a program names and no microbatch changes: transfers, meetings, steps of the optimizer."""
        p, cluster, model = self.profile, self.cluster, self.model
        root, layer = model.root_parameters, model.layer_parameters
        pushed, alone = (p.adapters, 0.0) if p.adapters else (layer, root)
        gathered, reduced = self._gathered, self.recipe.sent
        gather, push = ("gather", "push") if one_sided else ("all-gather", "reduce-scatter")
        meeting = settled = 0.0
        if cluster.gpus > 1:
            meeting = self._constant("meeting", cluster.latency)
            settled = self._constant("settle", meeting) + self.on_demand_cost * one_sided
        # Where all nodes get the sums, each has all states: a device steps so many times its share of them.
        states = cluster.nodes if self.ran.exchange == "layers" else 1

        def between(size: float) -> float:
            return network.exchange(cluster, size, collective=not one_sided)

        def summed(size: float) -> float:
            """Until all nodes get the sums of a unit: reduced between them, and gathered again."""
            return 2 * network.exchange(cluster, size, collective=True) if cluster.nodes > 1 else 0.0

        return {
            "overhead": self._constant("overhead", p.overhead),
            "gather root": self._transfer(gather, gathered * root, one_sided),
            "gather layer": self._transfer(gather, gathered * layer, one_sided),
            "push root": self._transfer(push, reduced * alone, one_sided),
            "push layer": self._transfer(push, reduced * pushed, one_sided, gathered * layer * self.recipe.reshard),
            "push between nodes": between(reduced * (model.layers * pushed + alone)),
            "sum layer": summed(reduced * pushed),
            "sum root": summed(reduced * alone),
            "gather between nodes": between(gathered * model.parameters),
            "bring layer": between(gathered * layer),
            "bring root": between(gathered * root),
            "optimizer": self._constant("optimizer", p.optimizer) * states,
            "publish": self._constant("publish", p.publish),
            SETTLES: settled,  # what the end of a minibatch takes beside bytes, until all have met
            "meeting": meeting,
        }

    def _measured(self, kind: str, devices: int) -> Timing | None:
        """What the profile measured of this kind. Of several nodes it knows what it measured on as many devices."""
        exact = any((t.kind, t.devices) == (kind, devices) for t in self.profile.timings)
        known = exact or devices <= self.cluster.devices_per_node or kind in LOCAL
        return self.profile.timing(kind, devices) if known else None

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
        by_rate, size = (network.one_sided, size + beside) if one_sided else (network.collective, size)
        return by_rate(self.cluster, size, self.holders, inside=not self.profile.node_transfers_included)


def _fits(of: Profile | ProfileBelow) -> dict[str, Polynomial]:
    """What each computation of a microbatch takes, by its name."""
    opening = replace(of.embed, constant=of.embed.constant + of.microbatch)
    passes = {"forward": of.forward, "head": of.head, "backward": of.backward}
    return {"embed": opening, **passes, "embed backward": of.embed}
