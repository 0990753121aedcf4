"""What a trainer runs by itself, in sentences: its best way, its settings for that, what another would bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from odcsim.decide import stock
from odcsim.decide.answer import NOTABLE, Basis
from odcsim.neighbours.neighbour import Neighbour
from odcsim.results.summary import Made, Row

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison  # which tells of itself by these


def verdict(reply: Basis, balanced: Row) -> str:
    """The best that the trainer runs, and what it would gain from plans and from on-demand, which the engine brings."""
    chosen = reply.chosen
    words = f"By itself it runs this fastest by {chosen.name}{way(chosen)}."
    others = [row for row in (balanced, reply.best) if row.memory_fits is not False]
    gains = [(row, chosen.makespan_seconds / row.makespan_seconds) for row in others]
    if not any(gain >= NOTABLE for _, gain in gains):
        return f"{words} No balancer and no sync of odc_engine is notably faster."
    listed = " and ".join(f"{row.name} {gain:.2f} times" for row, gain in gains)
    return f"{words} With odc_engine, {listed} as fast."


def way(row: Row) -> str:
    return f", {settings(row.made)}" if row.made else ""


def settings(made: Made) -> str:
    """What the trainer is told, and what a step is then."""
    step = f"{made.samples:,.0f} samples a step"
    if made.each:
        return f"{made.each} sample{'' if made.each == 1 else 's'} in a microbatch, {step}"
    return f"at most {made.max_tokens:,} tokens in a microbatch, {step}"


def notes(comparison: Comparison) -> Iterator[str]:
    """By which rules the trainer deals, and which of them would train on another batch."""
    setting = comparison.setting
    if (trainer := stock.known(setting.trainer)) is None:
        return
    yield rules(trainer)
    tried = {pair[0] for pair in comparison.stock}
    for rule in trainer.own:
        if rule.balancer not in tried and rule.rows and (least := stock.least_batch(setting, rule)):
            yield f"{rule.balancer} is left out: its smallest step has {least:,.0f} samples."


def rules(trainer: Neighbour) -> str:
    listed = "; ".join(f"{rule.balancer}: {rule.says}" for rule in trainer.own)
    kernels = ", ".join(f"{name} {value}" for name, value in trainer.assumes.items())
    assumed = f" Assumed of it, unless other kernels are asked for: {kernels}." if kernels else ""
    return f"{trainer.name} deals by rules of its own ({listed}) under {' or '.join(trainer.met)} sync.{assumed}"
