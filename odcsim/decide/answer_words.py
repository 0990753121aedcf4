"""What a comparison comes to, in sentences for somebody who will decide by them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from odcsim.catalog.estimates import memory
from odcsim.catalog.estimates.compute import PUBLISHED, guessed
from odcsim.cost import Cost
from odcsim.decide import fixed, room, stock_words
from odcsim.decide.answer import NOTABLE, Basis
from odcsim.decide.limit import limits
from odcsim.decide.remedies import remedies
from odcsim.decide.setting import Setting
from odcsim.profile import Profile
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.results.intervals import Draws
from odcsim.results.summary import Row
from odcsim.support.numbers import finer, from_to, hours, money, ratio
from odcsim.trace import Trace

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison  # which tells of itself by these

_TRUST = {
    "calibrated": "Seconds come from a profile measured on this hardware.",
    "scaled": "Seconds are estimates, scaled by one factor that was measured on a run of yours.",
    "published fit": "Seconds come from a published fit to others' measurements, not from measurements of yours.",
    "extrapolated": "Some seconds are extrapolated beyond what they were fitted to (longer samples, fuller "
    "microbatches, other devices, another model, or the same with another recompute).",
}
SHAPE = "shape, not data"
GROUPS = "groups of {} alike: the interval counts whole groups"
RUNS = "runs of about {} alike, found in the order of the file: the interval counts whole runs"
SLIGHT = 0.1  # of a sample more that one stands for with those that are like it


def verdict(reply: Basis) -> str:
    """Yes or no, in a few sentences; and what memory has to do with it."""
    if reply.nothing_fits:
        return stock_words.unfit(reply, reply.balanced) if reply.balanced else "Out of memory: nothing here fits."
    if reply.balanced is not None:
        return f"{stock_words.verdict(reply, reply.balanced)}{_tight(reply)}{_kept_out(reply)}"
    return f"{_verdict(reply)}{_tight(reply)}{_kept_out(reply)}"


def _verdict(reply: Basis) -> str:
    if reply.by_memory:
        return _by_memory(reply)
    best, name = reply.best, named(reply.best)
    gain = f"{best.speedup:.2f} times as fast as collective + lb-micro ({interval(best)})"
    rival = f"{reply.over_rival:.2f} times as fast as the best row without it, {named(reply.rival)}"
    if reply.pays:
        return f"Yes: {name} runs {gain}, and {rival}.{_flipped(reply)}"
    if (best.speedup_high or 0) < 1 and round(best.speedup or 0, 2) < 1:
        return f"No: on-demand is slower here. Its best row, {name}, is {gain}.{_flipped(reply)}"
    if (best.speedup_low or 0) <= 1:
        likely = min(best.speedup or 0, reply.over_rival) >= NOTABLE
        what = "does not pay for certain" if likely else "does not pay here"
        return f"No: on-demand {what}. Its best row, {name}, is {gain}.{_flipped(reply)}"
    words = f"No: {name} is {gain}, but only {rival}: a better balancer alone gains"
    return f"{words} about as much or more, so keep the sync you have.{_flipped(reply)}"


def _flipped(reply: Basis) -> str:
    if (flip := reply.flips) is None:
        return ""
    other = "No" if reply.pays else "Yes"
    lead = f"on-demand is then {flip.lead:.2f} times as fast as the best row without it"
    return f" The answer is {other} if compute takes {flip.factor:.2f} times these seconds: {lead}."


def _by_memory(reply: Basis) -> str:
    """Where memory alone decides between the two sides."""
    (fit, other) = (reply.best, reply.rival) if reply.pays else (reply.rival, reply.best)
    times = fit.makespan_seconds / other.makespan_seconds
    faster = f" and be {times:.2f} times as fast" if times >= NOTABLE else ""
    sizes = f"{named(other)} would need {(other.memory_bytes or 0) / 1e9:.0f} GB{faster},"
    sizes += f" {named(fit)} needs {capacity.sized(fit)}."
    if capacity.tight(other):
        answer = "Yes: without on-demand, every row is" if reply.pays else "No: with on-demand, every row is"
        return f"{answer} tight in memory here. {sizes}"
    answer = "Yes: only on-demand fits memory here" if reply.pays else "No: on-demand does not fit memory here"
    return f"{answer}. {sizes}"


def _tight(reply: Basis) -> str:
    """Where the row to choose fills more of a GPU than estimates can be trusted for."""
    if not capacity.tight(reply.chosen):
        return ""
    return f" Memory per device is {capacity.told(reply.chosen)}, so it may not fit."


def _kept_out(reply: Basis) -> str:
    """Faster rows that memory alone keeps from being chosen."""
    words = ""
    for kept, row in reply.kept_out:
        why = "is tight in memory" if capacity.tight(row) else "does not fit memory"
        faster = f"{kept.makespan_seconds / row.makespan_seconds:.2f} times as fast"
        words += f" {named(row)} would be {faster} as {named(kept)}, but {why} ({capacity.sized(row)})."
    return words


def sentences(comparison: Comparison, reply: Basis) -> list[str]:
    """Where the difference comes from, what it saves, and how far to trust it."""
    origin = comparison.setting.trace.origin
    if reply.nothing_fits:
        return [*_ways_out(comparison), *([drawn(origin)] if origin else [])]
    lines = [f"{_idle(reply)} {_savings(comparison, reply)}", _trust(comparison, reply), *stock_words.notes(comparison)]
    return [
        *lines,
        *_tightness(comparison, reply.chosen),
        *_sharding(comparison, reply),
        fixed.sentence(comparison.setting, limited=reply.balanced is None),
        *alike(comparison.setting.trace, comparison.draws),
        *([drawn(origin)] if origin else []),
    ]


def drawn(origin: str) -> str:
    """Where lengths come from; those of a published shape are nobody's data."""
    made = f"{SHAPE}: "
    if origin.startswith(made):
        return f"Lengths are synthetic ({SHAPE}): {origin.removeprefix(made)}."
    return f"Lengths: {origin}."


def alike(trace: Trace, draws: Draws) -> list[str]:
    """What intervals take for one: samples of a prompt, or of a run in the file as long as its neighbours' likeness
    says; nothing where they hardly are alike."""
    like = draws.like[1:] if draws.of > trace.size else np.zeros(0)
    if trace.prompts is not None:
        size, groups = trace.size / len(np.unique(trace.prompts)), GROUPS
    elif trace.siblings[0] > 1:
        size, groups = trace.siblings[0], GROUPS
    else:
        size, groups = 2 * like.sum() / like[:1].sum() if like.any() else 1.0, RUNS
    return [f"Lengths come in {groups.format(round(size))}."] if (size - 1) * like[:1].sum() > SLIGHT else []


def _ways_out(comparison: Comparison) -> list[str]:
    """What would fit, each by itself."""
    listed = remedies(replace(comparison.setting, cost=_limited(comparison)))
    if not listed:
        return []
    return [f"Options that fit: {'; '.join(listed)}."]


def _tightness(comparison: Comparison, chosen: Row) -> list[str]:
    """What would fit where the row to choose is tight, or would not hold the longest sample, which was not drawn."""
    trace, cost = comparison.setting.trace, room.under(comparison.setting.cost, chosen.sync)
    alone = Need(room.least(cost, trace).total, comparison.memory_limit)
    if capacity.level(alone) <= capacity.level(chosen):
        return _ways_out(comparison) if capacity.tight(chosen) else []
    words = f"The longest sample, {trace.longest:,} tokens, is not in these minibatches: with it, memory per device is"
    return [f"{words} {capacity.told(alone)}.", *_ways_out(comparison)]


def _limited(comparison: Comparison) -> Cost:
    """The cost with the memory that the comparison was made for."""
    cost, limit = comparison.setting.cost, comparison.memory_limit or 0.0
    return replace(cost, cluster=replace(cost.cluster, memory_bytes=limit))


def misfit(comparison: Comparison, reply: Basis) -> list[str]:
    """Where nothing fits: what the row that needs least would need."""
    chosen, limit = reply.chosen, comparison.memory_limit
    extra = _over_full(comparison, chosen)
    if chosen.memory_fits is not False or chosen.memory_bytes is None or limit is None:
        return []
    size = f"{chosen.memory_bytes / 1e9:.0f} GB of memory per device, and one has {limit / 1e9:.0f} GB"
    full = f" Full sharding would need {(chosen.memory_bytes - extra) / 1e9:.0f} GB." if extra else ""
    most = f" Most of it is {chosen.largest_term}." if chosen.largest_term else ""
    return [f"Even {named(chosen)} does not fit: it is estimated to need {size}.{full}{most}"]


def _idle(reply: Basis) -> str:
    before, after = reply.reference, reply.chosen
    if reply.balanced is not None:
        best = min(reply.balanced, reply.best, key=lambda row: row.makespan_seconds)
        return f"Devices idle {after.idle:.0%} of the time under {named(after)}, {best.idle:.0%} under {named(best)}."
    words = f"Devices idle {before.idle:.0%} of the time under {named(before)}"
    words += f" and {after.idle:.0%} under {named(after)}." if after is not before else ", and no row is faster."
    if reply.pays:
        gains = f"{after.sync_gain:.2f} comes from the sync and one of {after.balancer_gain:.2f} from the balancer"
        words += f" Of the speedup, a factor of {gains}."
    return words


def basis(comparison: Comparison) -> str:
    """What the figures of a table are of."""
    return f"Seconds, GPU-hours and dollars are of {comparison.basis}."


def _savings(comparison: Comparison, reply: Basis) -> str:
    """Dollars of a whole run stand beside its hours, in a sentence of its own."""
    before, after = (comparison.spent(row) for row in (reply.reference, reply.chosen))
    run = comparison.whole_run is not None
    takes = "takes" if comparison.setting.minibatches == 1 else "take"
    words = f"The whole run takes {spent_hours(after)}" if run else f"{comparison.basis} {takes} {spent_hours(after)}"
    if reply.chosen is reply.reference or reply.balanced is not None:
        return f"{words}."
    words += f" instead of {hours(before.gpu_hours)}"
    if not run and after.dollars is not None and before.dollars is not None:
        words += f", {spent_dollars(after)} instead of {money(before.dollars)}"
    return f"{words}."


def spent_hours(row: Row) -> str:
    """GPU-hours of a row, with their interval where there is one."""
    more = finer(row.gpu_hours_low, row.gpu_hours_high, hours)
    return f"{hours(row.gpu_hours, more)} GPU-hours{hours_between(row)}"


def hours_between(row: Row) -> str:
    return "" if row.certain else f" ({from_to(row.gpu_hours_low, row.gpu_hours_high, hours)})"


def spent_dollars(row: Row) -> str:
    if row.dollars is None:
        return ""
    return f"{money(row.dollars, finer(row.dollars_low or 0.0, row.dollars_high or 0.0, money))}{dollars_between(row)}"


def dollars_between(row: Row) -> str:
    if row.certain or row.dollars_low is None or row.dollars_high is None:
        return ""
    return f" ({from_to(row.dollars_low, row.dollars_high, money)})"


def utilization(row: Row) -> str:
    """What engineers see at once whether it is plausible."""
    if row.tflops_per_device is None:
        return ""
    shares = "" if row.mfu is None or row.hfu is None else f", {row.mfu:.0%} MFU, {row.hfu:.0%} HFU"
    return f" Each device reaches {row.tflops_per_device:.0f} TFLOP/s{shares}."


def _sharding(comparison: Comparison, reply: Basis) -> list[str]:
    """What hybrid sharding, or all that a node keeps, brings the chosen row and costs, where somebody asked for it."""
    recipe, chosen, gain = comparison.setting.cost.recipe, reply.chosen, reply.chosen.over_full
    if recipe.on(2).hierarchical:  # asked for, whether or not there are nodes
        return [_gained("Hierarchical transfers", ("run", "make"), comparison, reply)]
    if recipe.sharding == "full":
        return []
    words = _gained("Hybrid sharding", ("runs", "makes"), comparison, reply)
    if gain is None:
        return [words]
    full = {named(r): r.makespan_seconds * (r.over_full or 1) for r in _rivals(comparison)}
    rival = min(full, key=lambda name: full[name])
    longer = f"{full[rival] / chosen.makespan_seconds:.2f} times as long{_roomier(comparison.setting)}"
    return [f"{words} Full sharding's best row without on-demand, {rival}, takes {longer}."]


def _roomier(setting: Setting) -> str:
    """The limit that full sharding has room for beyond hybrid's, where no limit was given: it would not run at this."""
    if setting.max_tokens and not setting.limits_tried:
        return ""
    full = replace(setting, cost=setting.cost.by(sharding="full"))
    held, most = (max(limits(one), default=0) for one in (setting, full))
    return f" at this limit, and has room for {most:,} tokens in a microbatch" if most > held else ""


def _rivals(comparison: Comparison) -> list[Row]:
    """The rows without on-demand that full sharding would have room for; all where it has for none."""
    every = [row for row in comparison.rows if not row.one_sided]
    limit = comparison.memory_limit or math.inf
    return [r for r in every if (r.memory_bytes or 0.0) - _over_full(comparison, r) <= limit] or every


def _gained(name: str, verbs: tuple[str, str], comparison: Comparison, reply: Basis) -> str:
    run, make = verbs
    chosen, times = reply.chosen, reply.chosen.over_full
    if comparison.setting.cost.cluster.nodes == 1:
        return f"{name} {make} no difference here: there is one node, so it is full sharding."
    price = f"{_over_full(comparison, chosen) / 1e9:.1f} GB more memory per device"
    if times is None:
        return f"{name} {make} no difference to {named(chosen)}: it has none."
    if round(times, 2) <= 1:
        return f"{name} {make} {named(chosen)} no faster here ({times:.2f} times full sharding), for {price}."
    return f"{name} {run} {named(chosen)} {times:.2f} times as fast as full sharding would, for {price}."


def _over_full(comparison: Comparison, row: Row) -> float:
    """Bytes of a row's memory that full sharding would not need."""
    cost = comparison.setting.cost
    return memory.over_full(cost.model, cost.cluster.gpus, row.recipe, cost.holders)


def trust(fidelity: str, profile: Profile) -> str:
    """What seconds were made from."""
    words = _estimated(profile.kinds) if fidelity == "catalogue" else _TRUST.get(fidelity, fidelity)
    return f"{words} WARNING: {profile.origin}." if profile.fidelity == "extrapolated" else words


def _estimated(kinds: tuple[str, ...]) -> str:
    """What the catalogue's seconds were made from, by how its figures are known."""
    guesses = " and ".join(guessed(kinds))
    if not guesses:
        rates = "what GPUs reach in published runs"
    elif PUBLISHED.isdisjoint(kinds):
        rates = f"rates that are {guesses}, and not fitted to published runs"
    else:
        rates = f"what GPUs reach in published runs, and in part from rates that are {guesses}"
    return f"Seconds are estimated from {rates}; they are not measured."


def doubts(fidelity: str, profile: Profile) -> list[str]:
    """The same, where some of what was asked about is beyond that."""
    return [trust(fidelity, profile)] if fidelity == "extrapolated" else []


def _trust(comparison: Comparison, reply: Basis) -> str:
    """What the minibatches take; a whole run has a sentence of its own."""
    profile, chosen = comparison.setting.cost.profile, reply.chosen
    words = trust(comparison.fidelity, profile)
    if comparison.whole_run is None:
        words += f" Under {named(chosen)} all minibatches take {_long(chosen.makespan_seconds)}"
        interval = from_to(chosen.model_low, chosen.model_high, _long)
        words += "." if chosen.certain else f", 90 % interval {interval}."
    return f"{words}{utilization(chosen)} If all times are off by one factor, speedups still hold."


def _long(seconds: float, more: int = 0) -> str:
    return f"{hours(seconds, more)} s"


def named(row: Row) -> str:
    return row.name


def interval(row: Row) -> str:
    if row.minibatches == 1:
        return "no interval from one minibatch"
    return f"95 % interval {from_to(row.speedup_low or 0.0, row.speedup_high or 0.0, ratio)}"
