"""One row of a table: what a balancer under a sync comes to, and how it compares with the others."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from odcsim.cost import Cost
from odcsim.errors import InputError
from odcsim.recipe import Recipe
from odcsim.results import capacity
from odcsim.results.intervals import Draws, interval
from odcsim.results.metrics import Usage
from odcsim.timeline import Floats, Ints

REFERENCE = ("lb-micro", "collective")  # the paper's rival


@dataclass(frozen=True, slots=True)
class Made:
    """What a trainer makes of a step where a row is its own: the settings that it takes, and what they come to."""

    max_tokens: int  # of a microbatch
    minibatch: int  # of a device: samples, or the rows that it packs
    each: int  # samples of a microbatch, where they are counted
    samples: float  # of a step, on all devices
    tokens: float


NESTED = ("recipe", "over_full", "made", "reference_seconds")  # or said elsewhere


@dataclass(frozen=True, slots=True)
class Row:
    """Sums and ratios of sums over the minibatches. Speedups are None where there is nothing to compare with."""

    balancer: str
    recipe: Recipe  # as it ran: on one node hybrid sharding is full
    minibatches: int
    makespan_seconds: float
    idle: float
    idle_parts: dict[str, float]
    samples_per_second_per_device: float
    tokens_per_second: float
    gpu_hours: float
    model_low: float  # makespan at the ends of the interval that the cost's seconds come with
    model_high: float
    gpu_hours_low: float = 0.0  # the same of GPU-hours, and of dollars
    gpu_hours_high: float = 0.0
    dollars: float | None = None
    dollars_low: float | None = None
    dollars_high: float | None = None
    speedup: float | None = None  # over collective + lb-micro
    speedup_low: float | None = None  # 95 % interval over which samples there were
    speedup_high: float | None = None
    speedup_best_collective: float | None = None
    sync_gain: float | None = None  # speedup = sync_gain x balancer_gain: changing the sync first,
    balancer_gain: float | None = None  # then the balancer
    memory_bytes: float | None = None
    memory_fits: bool | None = None
    memory_limit: float | None = None  # bytes of one GPU, where known
    memory_terms: dict[str, float] | None = None  # bytes by what they are for
    over_full: float | None = None  # speedup of hybrid over full sharding
    tflops_per_device: float | None = None  # the model's own FLOPs, of attention what a causal mask leaves
    mfu: float | None = None  # they over the datasheet's; None where that is not known
    hfu: float | None = None  # with what is computed again
    microbatches: float = 0.0  # of a device in a minibatch, on average: steps of gradient accumulation
    busy: float | None = None  # devices that a minibatch's work fills at most, since its longest sample is one's own
    fidelity: str = ""  # of the seconds, for its schedules
    made: Made | None = None  # by a trainer, by itself
    reference_seconds: float = 0.0  # of pairs, that the reference model passes once before a run: not in the others

    @property
    def largest_term(self) -> str:
        """What most of its memory is for."""
        terms = self.memory_terms or {}
        return max(terms, key=lambda name: terms[name], default="")

    @property
    def certain(self) -> bool:
        """Whether the seconds come without an interval."""
        return self.model_low == self.model_high

    @property
    def sync(self) -> str:
        return self.recipe.sync

    @property
    def pair(self) -> tuple[str, str]:
        """What tells it from the other rows."""
        return self.balancer, self.sync

    @property
    def name(self) -> str:
        return f"{self.sync} + {self.balancer}"

    @property
    def one_sided(self) -> bool:
        return self.recipe.one_sided

    def as_json(self) -> dict[str, Any]:
        """Of the recipe only what rows of one table may differ in; `inputs` has the rest."""
        row: dict[str, Any] = {"balancer": self.balancer, "sync": self.sync}
        row |= {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NESTED}
        row |= {"idle_parts": {**self.idle_parts}, "memory_terms": self.memory_terms and {**self.memory_terms}}
        row |= {"sharding": self.recipe.sharding, "over_full": self.over_full}
        return row if self.made is None else row | {"made": asdict(self.made)}


def row(cost: Cost, balancer: str, usage: Usage, carried: tuple[Ints, Ints], price: float | None = None) -> Row:
    """A row by itself. `carried`: samples and tokens of each minibatch; the price is per GPU-hour."""
    seconds, gpus = float(usage.makespan.sum()), cost.cluster.gpus
    samples, tokens = (float(of.sum()) / seconds if seconds else 0.0 for of in carried)
    one = Row(
        balancer=balancer,
        recipe=cost.ran,
        minibatches=len(usage.makespan),
        makespan_seconds=seconds,
        idle=usage.idle(),
        idle_parts=usage.idle_parts(),
        samples_per_second_per_device=samples / gpus,
        tokens_per_second=tokens,
        gpu_hours=seconds * gpus / 3600,
        model_low=seconds,
        model_high=seconds,
    )
    return priced(scaled(one, 1.0, (cost.profile.low, cost.profile.high)), price)


def priced(row: Row, price: float | None) -> Row:
    """The row at so many dollars for a GPU-hour."""
    spent = row.gpu_hours, row.gpu_hours_low, row.gpu_hours_high
    paid, low, high = (None if price is None else hours * price for hours in spent)
    return replace(row, dollars=paid, dollars_low=low, dollars_high=high)


def scaled(row: Row, times: float, between: tuple[float, float]) -> Row:
    """The row with what it spends so many times. `between`: the ends of its interval, as factors of what it spends."""
    seconds, spent, (low, high) = row.makespan_seconds * times, row.gpu_hours * times, between
    whole = replace(row, makespan_seconds=seconds, model_low=seconds * low, model_high=seconds * high)
    whole = replace(whole, gpu_hours=spent, gpu_hours_low=spent * low, gpu_hours_high=spent * high)
    if row.dollars is None:
        return whole
    paid = row.dollars * times
    return replace(whole, dollars=paid, dollars_low=paid * low, dollars_high=paid * high)


def compared(rows: Sequence[Row], makespans: Sequence[Floats], draws: Draws) -> tuple[Row, ...]:
    """The rows with their speedups over the reference row, which ran the same samples in the same minibatches."""
    of = {row.pair: seconds for row, seconds in zip(rows, makespans, strict=True)}
    total = {pair: float(seconds.sum()) for pair, seconds in of.items()}
    if not min(total.values()):
        raise InputError("nothing takes any time", fix="the profile must give seconds to at least one kind of compute")
    every = capacity.roomiest([r for r in rows if r.sync == REFERENCE[1]])
    best = min(total[row.pair] for row in every)  # of collectives that fit, where any does
    result = []
    for row in rows:
        mine, bridge = total[row.pair], total[REFERENCE[0], row.sync]  # the reference's balancer under this row's sync
        low, high = (1.0, 1.0) if row.pair == REFERENCE else interval(of[REFERENCE], of[row.pair], draws)
        one = replace(row, speedup=total[REFERENCE] / mine, speedup_low=low, speedup_high=high)
        one = replace(one, speedup_best_collective=best / mine)
        result.append(replace(one, sync_gain=total[REFERENCE] / bridge, balancer_gain=bridge / mine))
    return tuple(result)


def best_first(rows: Iterable[Row]) -> list[Row]:
    """A trainer's own before the others; those that are tight after those that fit, and those that do not fit last."""
    every = list(rows)
    own = any(row.made for row in every)
    return sorted(every, key=lambda row: (own and row.made is None, capacity.level(row), row.makespan_seconds))
