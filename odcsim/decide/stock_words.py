"""What a trainer runs by itself, in sentences: its best way, its settings for that, what another would bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from odcsim.decide import stock
from odcsim.decide.answer import NOTABLE, Basis
from odcsim.neighbours.neighbour import Neighbour
from odcsim.recipe import Recipe
from odcsim.results import capacity
from odcsim.results.summary import Made, Row
from odcsim.support.numbers import counted

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison  # which tells of itself by these


def verdict(reply: Basis, balanced: Row) -> str:
    """The best that the trainer runs, and what it would gain from plans and from on-demand, which the engine brings."""
    chosen = reply.chosen
    words = f"The trainer's own fastest way is {chosen.name}{way(chosen, reply.unit)}."
    others = [row for row in (balanced, reply.best) if row.memory_fits is not False]
    gains = [(row, chosen.makespan_seconds / row.makespan_seconds) for row in others]
    if not any(gain >= NOTABLE for _, gain in gains):
        return f"{words} No balancer and no sync of odc_engine is notably faster."
    listed = " and ".join(f"{row.name} {gain:.2f} times" for row, gain in gains)
    return f"{words} With odc_engine, {listed} as fast."


def unfit(reply: Basis, balanced: Row) -> str:
    """Where nothing fits that the trainer runs, which does by the engine's plans."""
    fitting = [row for row in (balanced, reply.best) if row.memory_fits is not False]
    if not fitting:
        return "Out of memory: nothing here fits."
    listed = " and ".join(f"{row.name} ({capacity.told(row)})" for row in fitting)
    verb = "fits" if len(fitting) == 1 else "fit"
    return f"Out of memory: nothing that the trainer runs by itself fits. With odc_engine, {listed} {verb}."


def way(row: Row, unit: str) -> str:
    return f", {settings(row.made, unit)}" if row.made else ""


def settings(made: Made, unit: str = "sample") -> str:
    """What the trainer is told, and what a step is then."""
    step = f"{made.samples:,.0f} {unit}s a step"
    if made.each:
        return f"{counted(made.each, unit)} in a microbatch, {step}"
    return f"at most {made.max_tokens:,} tokens in a microbatch, {step}"


def notes(comparison: Comparison) -> Iterator[str]:
    """By which rules the trainer deals, and which of them would train on another batch."""
    setting = comparison.setting
    if (trainer := stock.known(setting.trainer)) is None:
        return
    yield rules(trainer, setting.cost.recipe)
    tried = {pair[0] for pair in comparison.stock}
    for rule in trainer.own:
        if rule.balancer in tried or rule.rows is None:
            continue
        why = (
            stock.nearest_steps(setting, rule) + " samples"
            if stock.packs(setting)
            else (
                "what stays together is not packed into rows"
                if setting.trace.bundle is not None
                else "rows would span steps that are kept in order"
            )
        )
        yield f"{rule.balancer} is left out: {why}."


def rules(trainer: Neighbour, recipe: Recipe) -> str:
    listed = "; ".join(f"{rule.balancer}: {rule.says}" for rule in trainer.own)
    kernels = ", ".join(f"{name} {value}" for name, value in trainer.assumes.items() if recipe.value(name) == value)
    assumed = f" Kernels assumed for it, unless you ask for others: {kernels}." if kernels else ""
    return f"{trainer.name} assigns samples by its own rules ({listed}) under {' or '.join(trainer.met)} sync.{assumed}"
