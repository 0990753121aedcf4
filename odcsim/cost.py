"""Seconds for everything a program names: a profile's fits, or a GPU's rates, applied to what each microbatch holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.cluster import Cluster
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.profile import DTYPES, LOCAL, Polynomial, Profile, Timing
from odcsim.program import SETTLES, WHOLE, Program, sync_named
from odcsim.recipe import AGAIN, USUAL, Recipe
from odcsim.schedule import Schedule

Floats = NDArray[np.float64]
# Parameters travel in bf16 where a profile does not say otherwise, gradients in fp32: FSDP2's usual mixed precision.
GATHER_BYTES, PUSH_BYTES = 2, 4
# Keys and values travel as they are computed; of their gradients PyTorch sums in fp32 what comes from other GPUs
# (2.13.0, torch/distributed/tensor/experimental/_context_parallel/_attention.py: `convert_to_f32`).
KEY_BYTES, KEY_SUM_BYTES = 2, 4
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
        tokens, squares, samples = (
            np.bincount(place, (of * factors)[order], counts.size * shape[0]).reshape(shape)
            for of in (lengths, model.squares(lengths), np.ones(len(lengths)))
        )
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
            mine, its = ("with" if again else "without" for again in (self.profile.recompute, self.recipe.recomputes))
            fix = "make them so with odcsim.catalog.estimates.recompute.under"
            raise InputError(f"the profile's seconds are {mine} recompute, the recipe is {its}", fix=fix)
        if self.cluster.gpus % self.holders:
            raise InputError(
                f"--sharding hybrid on {self.cluster.gpus} devices in nodes of {self.cluster.devices_per_node}",
                fix="give a multiple of a node's devices: every node holds all parameters",
            )
        self._check_context()

    def _check_context(self) -> None:
        """Refuse groups that no trainer makes of these GPUs, or whose layers nobody has priced."""
        each, per_node = self.recipe.context, self.cluster.devices_per_node
        workers = self.workers  # which refuses what does not divide
        if each > 1 and not self.model.splits:
            fix = "leave it out: what linear attention or a choice of tokens passes between GPUs is not priced"
            raise InputError(f"--context {each} with {self.model.name}", fix=fix)
        if workers * each > per_node and per_node % each and each % per_node:
            fix = "give a divisor of a node's devices, or a multiple: a group is inside a node, or has whole ones"
            raise InputError(f"--context {each} in nodes of {per_node}", fix=fix)
        if each > 1 and self.recipe.sharding == WHOLE:
            fix = "leave one out: of GPUs that share sequences, what they train is priced as sharded"
            raise InputError(f"--context {each} with --sharding none", fix=fix)
        if self.holders % each:
            fix = "add --sharding full: a node does not hold such a group"
            raise InputError(f"--context {each} with --sharding hybrid in nodes of {per_node}", fix=fix)

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
        """Who each run microbatches of their own: every GPU is one, or as many as share each sequence."""
        return self.recipe.workers(self.cluster.gpus)

    @property
    def pace(self) -> Floats:
        """How many times as long the compute of each worker takes: its slowest GPU's, for which the others wait."""
        pace, each = np.ones(self.workers), self.recipe.context
        for worker in {gpu // each for gpu, _ in self.cluster.slow}:
            known = [times for gpu, times in self.cluster.slow if gpu // each == worker]
            pace[worker] = max(known if len(known) == each else [1.0, *known])
        return pace

    @property
    def own(self) -> Profile:
        """The profile by what a worker's microbatch holds, of which each GPU of its computes an even part. In every
        layer they gather keys and values before attention, as often as it runs, and sum their gradients behind it."""
        p, each = self.profile, self.recipe.context
        if each == 1:
            return p
        keys, again = self.model.keys_and_values, AGAIN[self.recipe.recompute][2]
        gather = self._between("all-gather", KEY_BYTES * keys)
        sums = self._between("reduce-scatter", KEY_SUM_BYTES * keys)

        def part(of: Polynomial, gathers: float = 0.0, pushes: float = 0.0) -> Polynomial:
            constant, linear = (gathers * one + pushes * other for one, other in zip(gather, sums, strict=True))
            shared = {"linear": of.linear / each + linear, "quadratic": of.quadratic / each}
            return replace(of, constant=of.constant + constant, **shared)

        def parts(of: Any) -> dict[str, Any]:
            layer = {"forward": part(of.forward, 1.0), "backward": part(of.backward, 1.0 + again, 1.0)}
            return {**layer, "head": part(of.head), "embed": part(of.embed)}

        below = replace(p.below, **parts(p.below))
        return replace(p, fewest=p.fewest * each, most_tokens=p.most_tokens * each, below=below, **parts(p))

    def _between(self, kind: str, size: int) -> tuple[float, float]:
        """Seconds of a collective among the GPUs of a worker: whatever it moves, and of `size` bytes, a token's."""
        each, cluster = self.recipe.context, self.cluster
        if (timing := self._measured(kind, each)) is not None:
            return timing.constant, timing.per_byte * size
        constant = cluster.latency + cluster.hop * (each - 1) * (each > cluster.devices_per_node)
        return constant, max(0.0, cluster.collective(size, each) - constant)

    @property
    def holders(self) -> int:
        """How many devices together hold each unit that is gathered and pushed."""
        if self.sharded == WHOLE:
            return 1
        return self.cluster.devices_per_node if self.sharded == "hybrid" else self.cluster.gpus

    def sample_seconds(self, lengths: NDArray[np.int64]) -> Floats:
        """Compute that each sample brings, without the constants of its microbatch: what balancers weigh."""
        linear, quadratic = self.sample_parts(lengths)
        return linear + quadratic

    def sample_parts(self, lengths: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Seconds of each sample in two parts: what grows with its length or not at all, and what with its square."""
        p = self.own
        linear, each, quadratic = (self._total(of, p) for of in ("linear", "sample", "quadratic"))
        return linear * lengths.astype(np.float64) + each, quadratic * self.model.squares(lengths)

    def _total(self, coefficient: str, p: Profile) -> float:
        """What the computations of a microbatch come to: each layer's, the head's, and the embedding's both ways."""
        forward, backward, head, embed = (getattr(of, coefficient) for of in (p.forward, p.backward, p.head, p.embed))
        return float(self.model.layers * (forward + backward) + head + 2 * embed)

    def microbatch_times(self, *, one_sided: bool) -> tuple[float, Callable[[float], float]]:
        """What a microbatch takes beside its samples (constants, and the root's transfers), and about what one comes to
        whose samples take so long.

        Layers' transfers run beside compute; a pass takes as long as they do where that is longer.
        """
        p, fixed, layers = self.own, self.transfers(one_sided), self.model.layers
        beside = fixed["overhead"] + fixed["gather root"] + fixed["push root"]
        empty = self._total("constant", p) + p.microbatch + beside
        gather, push = layers * fixed["gather layer"], layers * fixed["push layer"]
        again = gather * self.recipe.reshard
        both = p.forward.linear + p.backward.linear
        first = p.forward.linear / both if both else 0.25  # the forward's share of the samples' work
        # Below so many tokens launching takes longer than a pass, or other seconds hold.
        launched = ((of.floor - of.constant) / of.linear for of in (p.forward, p.backward) if of.linear)
        fullest = p.fewest if p.joined else max(launched, default=0.0)
        weights = times = np.zeros(1)
        if fullest > 0:
            tokens = np.linspace(0.0, fullest, STEPS)
            # Minibatches of one microbatch on one device, which hold so many tokens, and hardly any squares.
            holds = tokens.reshape(1, -1, 1)
            alone = Load(holds, 0 * holds, np.ones_like(holds), np.ones((STEPS, 1), dtype=np.int64))
            compute = self.compute(alone)
            forward, backward = (layers * compute(what, 0)[:, 0] for what in ("forward", "backward"))
            once = sum(compute(what, 0)[:, 0] for what in ("embed", "head", "embed backward"))
            times = beside + once + np.maximum(forward, gather) + np.maximum(backward, max(again, push))
            weights = self._total("linear", p) * tokens  # as if all seconds of samples were of tokens

        edge = float(weights[-1])

        def seconds(samples: float) -> float:
            if samples < edge:
                return float(np.interp(samples, weights, times))
            return empty + max(first * samples, gather) + max((1 - first) * samples, again, push)

        return empty, seconds

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
        p = self.own
        below, joined = p.below, p.joined
        own, other = (
            {
                "embed": replace(of.embed, constant=of.embed.constant + of.microbatch),
                "forward": of.forward,
                "head": of.head,
                "backward": of.backward,
                "embed backward": of.embed,
            }
            for of in (p, below)
        )
        moved: dict[str, float] = {}
        if joined and p.node_transfers_included and self.holders > 1:
            # The profile's own seconds hold a node's transfers: those that take their place have to.
            gathered, reduced = DTYPES.get(p.dtype, GATHER_BYTES), self.recipe.sent
            latency, within, holders = self.cluster.latency, self.cluster.within, self.holders
            layer, root = self.model.layer_parameters, self.model.root_parameters
            gather, opening = (latency + within(gathered * of, holders) for of in (layer, root))
            push, closing = (latency + within(reduced * of, holders) for of in (layer, root))
            again = gather * self.recipe.reshard + push
            moved = {"forward": gather, "backward": again, "embed": opening, "embed backward": closing}

        def seconds(what: str, m: int) -> Floats:
            tokens, squares, samples = load.tokens[m], load.squares[m], load.samples[m]
            fitted = own[what].seconds(tokens, squares, samples)
            if not joined:
                return fitted
            emptier = other[what].seconds(tokens, squares, samples)
            if busy := moved.get(what, 0.0):
                emptier = np.maximum(emptier, busy) + below.copying * np.minimum(emptier, busy)
            share: Floats = np.clip(2 * tokens / p.fewest - 1, 0.0, 1.0)  # that is the profile's own
            return share * fitted + (1 - share) * emptier

        return seconds

    def transfers(self, one_sided: bool) -> dict[str, float]:
        """Seconds of what a program names and no microbatch changes: transfers, meetings, steps of the optimizer."""
        p, cluster, model, holders = self.profile, self.cluster, self.model, self.holders
        gathered, reduced = DTYPES.get(p.dtype, GATHER_BYTES), self.recipe.sent
        root, layer = gathered * model.root_parameters, (self.recipe.quantized or gathered) * model.layer_parameters
        sums = reduced * (p.adapters or model.layer_parameters)  # of a layer, where all or adapters alone are trained
        root_sums = 0.0 if p.adapters else reduced * model.root_parameters
        gather, push = ("gather", "push") if one_sided else ("all-gather", "reduce-scatter")
        # A link takes in what its device gathers and what peers push to it, so that a one-sided push takes as long as
        # both. Collectives queue behind each other.
        beside = layer * self.recipe.reshard * one_sided
        units = {
            "gather root": (gather, root, 0.0),
            "gather layer": (gather, layer, 0.0),
            "push root": (push, root_sums, 0.0),
            "push layer": (push, sums, beside),
        }
        by_rate = cluster.one_sided if one_sided else cluster.collective
        fixed = dict.fromkeys(units, 0.0)
        whole = self.sharded == WHOLE
        if whole and cluster.gpus > 1:  # nothing is gathered; sums are reduced, and gathered again
            for name, size in (("push root", root_sums), ("push layer", sums)):
                both = ("reduce-scatter", "all-gather")
                fixed[name] = sum(self._moved(kind, size, cluster.gpus, by_rate) for kind in both)
            units = {}
        for name, (kind, size, more) in units.items() if cluster.gpus > 1 else ():
            fixed[name] = self._moved(kind, size, holders, by_rate, more)

        own = {"overhead": p.overhead, "optimizer": p.optimizer, "publish": p.publish, "meeting": cluster.latency}
        for kind in own:
            if (timing := self._measured(kind, cluster.gpus)) is not None:
                own[kind] = timing.constant
        # Where all nodes get the sums, each has all states: a device steps so many times its share of them.
        own["optimizer"] *= cluster.gpus if whole else cluster.nodes if self.ran.exchange == "layers" else 1
        timing = self._measured("settle", cluster.gpus)
        settle = (own["meeting"] if timing is None else timing.constant) + self.on_demand_cost * one_sided
        if cluster.gpus == 1:
            own["meeting"] = settle = 0.0
        exchange = partial(cluster.exchange, collective=not one_sided)
        ring = partial(cluster.exchange, collective=True)
        ways = 2 if cluster.nodes > 1 else 0  # until all nodes get a unit's sums: reduced between them, gathered again
        return {
            **fixed,
            **own,
            "push between nodes": exchange(model.layers * sums + root_sums),
            "sum layer": ways * ring(sums),
            "sum root": ways * ring(root_sums),
            "gather between nodes": exchange(model.layers * layer + root),
            "bring layer": exchange(layer),
            "bring root": exchange(root),
            SETTLES: settle,  # what the end of a minibatch takes beside bytes, until all have met
        }

    def _moved(self, kind: str, size: float, devices: int, rate: Callable[..., float], more: float = 0.0) -> float:
        """Seconds of a transfer of so many bytes among so many devices: measured, else by a rate, with what its link
        takes in beside it."""
        if (timing := self._measured(kind, devices)) is not None:
            return (timing.constant + timing.per_byte * size) * timing.slowdown
        return rate(size + more, devices, inside=not self.profile.node_transfers_included)

    def _measured(self, kind: str, devices: int) -> Timing | None:
        """What the profile measured of this kind. Of several nodes it knows what it measured on as many devices."""
        exact = any((t.kind, t.devices) == (kind, devices) for t in self.profile.timings)
        near = devices <= self.cluster.devices_per_node or kind in LOCAL
        return self.profile.timing(kind, devices) if exact or near else None
