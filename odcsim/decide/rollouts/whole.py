"""Seconds of a whole step: training, passes without backward, and generation, which balance does not touch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.cost import Cost, Load
from odcsim.decide import room
from odcsim.decide.answer import NOTABLE
from odcsim.decide.evaluate import costed
from odcsim.decide.remedies import remedies
from odcsim.decide.rollouts.deals import Dealer, Updates, dealers
from odcsim.decide.setting import Setting
from odcsim.executors.simulation import carried, fidelity, usage
from odcsim.program import MEETING, sync_named
from odcsim.results import capacity
from odcsim.results.intervals import Draws, of_run
from odcsim.schedule import Schedule
from odcsim.support.numbers import duration, finer, from_to, money

HEAD = 1 / 3  # of the head's seconds that are its forward's
REFERENCE, VERL = ("packed", MEETING), ("rollout", MEETING)


@dataclass(frozen=True, slots=True)
class Around:
    """What a step has beside its training pass. A critic is taken for a model of the same shape."""

    passes: int = 2  # without backward: log-probabilities of the old policy and of the reference
    critic: bool = False
    generation: float = 0.0  # seconds, with all else that does not depend on who trains on what

    @property
    def trainings(self) -> int:
        return 2 if self.critic else 1

    @property
    def lookings(self) -> int:
        """A critic's values are one pass more."""
        return self.passes + self.critic


@dataclass(frozen=True, slots=True)
class WholeStep:
    """Seconds of a step, on average."""

    dealer: str
    way: str
    training: float  # the actor's alone
    forward: float  # one pass without backward over all samples
    around: Around
    memory_bytes: float = 0.0  # of a device in the actor's training pass
    memory_fits: bool | None = None  # None: nobody knows what a device has
    memory_limit: float | None = None  # bytes of one GPU, where known
    between: tuple[float, float] = (1.0, 1.0)  # ends of the 90 % interval of what is computed, as factors
    rate: float | None = None  # dollars of all devices in a second, where a price is known
    fidelity: str = ""  # of the seconds that are computed
    each: tuple[float, ...] = ()  # computed seconds of every step

    @property
    def trained(self) -> float:
        return self.training * self.around.trainings

    @property
    def passed(self) -> float:
        return self.forward * self.around.lookings

    @property
    def seconds(self) -> float:
        return self.trained + self.passed + self.around.generation

    @property
    def ends(self) -> tuple[float, float]:
        """The 90 % interval of a step's seconds, in which generation is what somebody said."""
        low, high = self.between
        computed = self.trained + self.passed
        return computed * low + self.around.generation, computed * high + self.around.generation

    def dollars(self, seconds: float) -> float | None:
        """Of so many seconds of all devices, which are paid for while they generate, too."""
        return None if self.rate is None else self.rate * seconds

    def as_json(self) -> dict[str, Any]:
        shown = {"dealt": self.dealer, "run": self.way, "training_seconds": self.trained}
        more = {"forward_seconds": self.passed, "generation_seconds": self.around.generation}
        memory = {"memory_bytes": self.memory_bytes, "memory_fits": self.memory_fits}
        memory |= {"memory_limit": self.memory_limit, "memory_tight": capacity.tight(self)}
        step = {"step_seconds": self.seconds, "dollars": self.dollars(self.seconds)}
        for end, seconds in zip(("low", "high"), self.ends, strict=True):
            step |= {f"step_seconds_{end}": seconds, f"dollars_{end}": self.dollars(seconds)}
        return {**shown, **more, **step, **memory, "fidelity": self.fidelity}


def pieces(trainer: str | None = None) -> int:
    """Of the work: each dealer's deals, and each sync that runs them."""
    return sum(1 + len(dealer.ways) for dealer in dealers(trainer))


def steps(
    setting: Setting, updates: int, around: Around, *, advance: Callable[[], None] = lambda: None
) -> list[WholeStep]:
    """Every dealer with every sync that can run it. `advance` is called once for each of the `pieces`."""
    rows = []
    for dealer in dealers(setting.trainer):
        schedules = dealer.function(setting, updates)
        advance()
        for way in dealer.ways:
            rows.append(_step(setting, dealer, way, schedules, updates, around))
            advance()
    return rows


def _step(setting: Setting, dealer: Dealer, way: str, schedules: Updates, updates: int, around: Around) -> WholeStep:
    count, cost = len(schedules) // updates, room.under(setting.cost, way)
    used, limit = usage(schedules, cost, seed=setting.seed), setting.cost.cluster.memory_bytes or None
    most = max(schedule.fullest for schedule in schedules), setting.trace.longest
    row = costed(cost, dealer.name, used, carried(schedules), most, limit, setting.price)
    passes = forward(cost, schedules, updates)
    profile, training = cost.profile, row.makespan_seconds / count
    memory = row.memory_bytes or 0.0, row.memory_fits, limit
    rate = None if setting.price is None else setting.price * setting.cost.cluster.gpus / 3600
    seconds = (profile.low, profile.high), rate, fidelity(cost, schedules)
    step = WholeStep(dealer.name, way, training, float(passes.mean()), around, *memory, *seconds)
    trained = used.makespan.reshape(count, updates).sum(axis=1)
    return replace(step, each=tuple((trained * around.trainings + passes * around.lookings).tolist()))


def sampled(step: WholeStep, draws: Draws) -> WholeStep:
    """The step with the interval of which prompts were drawn, too."""
    return replace(step, between=of_run(np.array(step.each), draws, *step.between))


def forward(cost: Cost, schedules: Sequence[Schedule], updates: int) -> NDArray[np.float64]:
    """Seconds of one pass without backward over each step, in the microbatches that it trains on.

    Where devices meet, the slowest sets the pace of each microbatch; on demand only that of the step.
    """
    each = [_seconds(cost, schedule) for schedule in schedules]
    by_step = [each[start : start + updates] for start in range(0, len(each), updates)]
    if cost.recipe.one_sided:
        return np.array([sum(table.sum(axis=0) for table in step).max() for step in by_step])
    return np.array([sum(float(table.max(axis=1).sum()) for table in step) for step in by_step])


def _seconds(cost: Cost, schedule: Schedule) -> NDArray[np.float64]:
    """Of each microbatch of each device; a layer takes as long as its gather where that is longer."""
    load, fixed, p = Load.of(cost.model, [schedule]), cost.transfers(cost.recipe.one_sided), cost.profile
    # A microbatch's constant is that of its training.
    bare = replace(p, microbatch=0.0, below=replace(p.below, microbatch=0.0))
    compute, count = replace(cost, profile=bare).compute(load), len(load.tokens)
    forward, embed, head = (
        np.concatenate([compute(what, m) for m in range(count)]) for what in ("forward", "embed", "head")
    )
    layer = np.maximum(forward, fixed["gather layer"])
    whole = cost.model.layers * layer + embed + HEAD * head + fixed["gather root"]
    present = np.arange(count)[:, None] < load.counts
    return np.where(present, whole, 0.0)


def takes(rows: Sequence[WholeStep], mine: WholeStep | None = None) -> list[str]:
    """What a step takes and costs by a trainer's own rule, else by the fastest of those that fit."""
    fitting = [row for row in capacity.roomiest([mine] if mine else rows) if row.memory_fits is not False]
    if not fitting:
        return []
    row = min(fitting, key=lambda row: row.seconds)
    low, high = row.ends
    time, ends = duration(row.seconds, finer(low, high, duration)), from_to(low, high, duration)
    if row.rate is not None:
        paid = low * row.rate, high * row.rate
        time += f" and {money(row.seconds * row.rate, finer(*paid, money))}"
        ends += f", {from_to(*paid, money)}"
    between = f" (90 % interval {ends})" if row.between[0] < row.between[1] else ""
    return [f"A step takes {time} under {_named(row)}{between}."]


def own(rows: Sequence[WholeStep], trainer: str | None) -> WholeStep | None:
    """The row that a trainer which was asked for runs by itself."""
    names = [dealer.name for dealer in dealers(trainer) if trainer and dealer.trainer == trainer]
    return next((row for row in rows if row.dealer in names and sync_named(row.way).meets), None)


def beside(rows: Sequence[WholeStep], mine: WholeStep) -> list[str]:
    """What a trainer's own rule takes of the step, and what others would bring to it."""
    if mine.memory_fits is False:
        return [f"{_named(mine)} does not fit memory here: {capacity.sized(mine)}."]
    others = [row for row in capacity.roomiest(rows) if row is not mine and row.memory_fits is not False]
    sides = [best for meets in (True, False) if (best := _fastest(others, meets=meets))]
    gains = [_gain(best, mine) for best in sides if mine.trained / best.trained >= NOTABLE]
    brought = [f"With odc_engine: {' '.join(gains)}"] if gains else ["No rule of odc_engine is notably faster."]
    tight = [f"Memory per device is {capacity.told(mine)}, so it may not fit."] if capacity.tight(mine) else []
    return [*tight, *brought, _share(mine)]


def verdict(rows: Sequence[WholeStep]) -> list[str]:
    """What on-demand brings to the training pass, what that is of the whole step, and what dealing anew brings. Rows
    that do not fit memory take no part, nor do tight ones where any fits."""
    fitting = [row for row in capacity.roomiest(rows) if row.memory_fits is not False]
    if not fitting:
        return ["Out of memory: nothing here fits."]
    best, rival = (_fastest(fitting, meets=meets) for meets in (False, True))
    ahead = min((row for row in (rival, best) if row), key=lambda row: row.seconds)
    usual = next(row for row in rows if (row.dealer, row.way) == VERL)
    lead = _gain(best, rival) if best and rival else f"Of those that fit memory, {_named(ahead)} is the fastest."
    return [lead, _share(ahead), _beside(ahead, usual), *_memory(ahead, rows)]


def _memory(ahead: WholeStep, rows: Sequence[WholeStep]) -> Iterator[str]:
    """Where what is ahead is tight, and where it is ahead by memory alone."""
    if capacity.tight(ahead):
        yield f"Memory per device of {_named(ahead)} is {capacity.told(ahead)}, so it may not fit."
    fuller = [row for row in rows if capacity.level(row) > capacity.level(ahead)]
    first = min(fuller, key=lambda row: row.seconds, default=ahead)
    if (times := ahead.seconds / first.seconds) >= NOTABLE:
        why = "is tight in memory" if capacity.tight(first) else "does not fit memory"
        faster = f"{_named(first)} would be {times:.2f} times as fast as {_named(ahead)}"
        yield f"{faster}, but {why} ({capacity.sized(first)})."


def _fastest(rows: Sequence[WholeStep], *, meets: bool) -> WholeStep | None:
    return min((row for row in rows if sync_named(row.way).meets is meets), key=lambda row: row.seconds, default=None)


def _beside(ahead: WholeStep, usual: WholeStep) -> str:
    if ahead is usual:
        return "No rule of assigning samples is faster here than verl's."
    if capacity.level(usual) > capacity.level(ahead):
        return f"Verl's rule {'is tight in' if capacity.tight(usual) else 'does not fit'} memory here."
    return f"Compared with verl's rule: {_gain(ahead, usual)}"


def out(setting: Setting, rows: Sequence[WholeStep]) -> list[str]:
    """What would fit where nothing does, or where all is tight."""
    fits = any(capacity.level(row) == capacity.FITS for row in rows)
    batch = setting.batch
    listed = [] if fits else remedies(replace(setting, global_batch=batch))
    return [f"Options that fit: {'; '.join(listed)}."] if listed else []


def _gain(best: WholeStep, rival: WholeStep) -> str:
    training, step = rival.trained / best.trained, rival.seconds / best.seconds
    ours, theirs = _named(best), _named(rival)
    if training < NOTABLE:
        return f"{ours} does not pay here: its training pass takes {1 / training:.2f} times as long as {theirs}."
    return f"{ours} makes the training pass {training:.2f} times as fast as {theirs}, the whole step {step:.2f} times."


def _named(row: WholeStep) -> str:
    return f"{row.way} + {row.dealer}"


def _share(row: WholeStep) -> str:
    """Amdahl's: what is not training sets how much faster a step can become by training faster."""
    share = row.trained / row.seconds
    if not row.around.generation:
        return f"Training is {share:.0%} of a step without generation, which --generation-seconds adds."
    most = f"{1 / (1 - share):.2f}" if share < 1 else "any number of"
    return f"Training is {share:.0%} of the step: if it took no time, the step would be {most} times as fast."
