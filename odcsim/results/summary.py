"""One row of a table: what a balancer under a sync comes to, and how it compares with the others."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

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
    fidelity: str = ""  # of the seconds, for its schedules
    made: Made | None = None  # by a trainer, by itself

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
    def pair(self) -> tuple[str, str]:
        """What tells it from the other rows: (balancer, sync)."""
        return self.balancer, self.recipe.sync

    @property
    def name(self) -> str:
        return f"{self.sync} + {self.balancer}"

    @property
    def sync(self) -> str:
        return self.recipe.sync

    @property
    def one_sided(self) -> bool:
        return self.recipe.one_sided

    @property
    def sharding(self) -> str:
        return self.recipe.sharding

    def as_json(self) -> dict[str, Any]:
        """Of the recipe only what rows of one table may differ in; `inputs` has the rest."""
        every = ((field.name, getattr(self, field.name)) for field in fields(self))
        row = {name: dict(value) if isinstance(value, Mapping) else value for name, value in every}
        balancer, _, over_full, _ = (row.pop(name) for name in ("balancer", "recipe", "over_full", "made"))
        known = {"balancer": balancer, "sync": self.sync, **row, "sharding": self.sharding, "over_full": over_full}
        return known if self.made is None else known | {"made": asdict(self.made)}


@dataclass(frozen=True, slots=True)
class Measured:
    """The usage of one (balancer, sync) and what its minibatches carried."""

    balancer: str
    recipe: Recipe  # as it ran
    usage: Usage
    samples: Ints
    tokens: Ints
    gpus: int


def row(measured: Measured, low: float, high: float, price: float | None) -> Row:
    """A row by itself. `low` and `high` are the cost's uncertainty as factors of time; the price is per GPU-hour."""
    usage = measured.usage
    seconds = float(usage.makespan.sum())
    hours = seconds * measured.gpus / 3600
    one = Row(
        balancer=measured.balancer,
        recipe=measured.recipe,
        minibatches=len(usage.makespan),
        makespan_seconds=seconds,
        idle=usage.idle(),
        idle_parts=usage.idle_parts(),
        samples_per_second_per_device=float(measured.samples.sum()) / seconds / measured.gpus if seconds else 0.0,
        tokens_per_second=float(measured.tokens.sum()) / seconds if seconds else 0.0,
        gpu_hours=hours,
        model_low=seconds * low,
        model_high=seconds * high,
        gpu_hours_low=hours * low,
        gpu_hours_high=hours * high,
    )
    return priced(one, price)


def priced(row: Row, price: float | None) -> Row:
    """The row at so many dollars for a GPU-hour."""
    if price is None:
        return replace(row, dollars=None, dollars_low=None, dollars_high=None)
    paid = (row.gpu_hours * price, row.gpu_hours_low * price, row.gpu_hours_high * price)
    return replace(row, dollars=paid[0], dollars_low=paid[1], dollars_high=paid[2])


def over(row: Row, steps: int, between: tuple[float, float]) -> Row:
    """The row of so many steps, of which its minibatches are a part. `between`: the ends of their interval, as factors
    of what they take."""
    return replace(scaled(row, steps / row.minibatches, between), minibatches=steps)


def scaled(row: Row, times: float, between: tuple[float, float]) -> Row:
    """The row with what it spends so many times."""
    seconds, hours = row.makespan_seconds * times, row.gpu_hours * times
    paid = None if row.dollars is None else row.dollars * times
    low, high = between
    return replace(
        row,
        makespan_seconds=seconds,
        model_low=seconds * low,
        model_high=seconds * high,
        gpu_hours=hours,
        gpu_hours_low=hours * low,
        gpu_hours_high=hours * high,
        dollars=paid,
        dollars_low=None if paid is None else paid * low,
        dollars_high=None if paid is None else paid * high,
    )


def used(row: Row, flops: float, again: float, devices: int, peak: float) -> Row:
    """The row with what its devices reach: `flops` are the model's, `again` what is computed once more."""
    spent = row.makespan_seconds * devices
    if not spent:
        return row
    known = peak * spent
    shares = (flops / known, (flops + again) / known) if peak else (None, None)
    return replace(row, tflops_per_device=flops / spent / 1e12, mfu=shares[0], hfu=shares[1])


def compared(rows: Sequence[Row], makespans: Sequence[Floats], draws: Draws) -> tuple[Row, ...]:
    """The rows with their speedups over the reference row, which ran the same samples in the same minibatches."""
    of = {(r.balancer, r.sync): seconds for r, seconds in zip(rows, makespans, strict=True)}
    total = {key: float(seconds.sum()) for key, seconds in of.items()}
    reference = of[REFERENCE]
    if not min(total.values()):
        raise InputError("nothing takes any time", fix="the profile must give seconds to at least one kind of compute")
    best = total[_best_collective(rows, total)]
    done = []
    for r in rows:
        mine = of[r.balancer, r.sync]
        low, high = (1.0, 1.0) if r.pair == REFERENCE else interval(reference, mine, draws)
        bridge = total[REFERENCE[0], r.sync]  # the reference balancer under this row's sync
        done.append(
            replace(
                r,
                speedup=total[REFERENCE] / total[r.balancer, r.sync],
                speedup_low=low,
                speedup_high=high,
                speedup_best_collective=best / total[r.balancer, r.sync],
                sync_gain=total[REFERENCE] / bridge,
                balancer_gain=bridge / total[r.balancer, r.sync],
            )
        )
    return tuple(done)


def _best_collective(rows: Sequence[Row], total: dict[tuple[str, str], float]) -> tuple[str, str]:
    """Of those that fit, where any does."""
    every = capacity.roomiest([r for r in rows if r.sync == REFERENCE[1]])
    return min(((r.balancer, r.sync) for r in every), key=lambda pair: total[pair])
