"""What memory and idle devices say of an advice, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from odcsim.decide.remedies import outliers, remedies
from odcsim.results import capacity
from odcsim.support.numbers import duration

if TYPE_CHECKING:
    from odcsim.decide.advice.offers import Advice, Offer  # which tell of themselves by these

HALF = 0.5  # of devices' time: where more of it is idle, half of them would do


def used(offer: Offer) -> str:
    """What a device of it comes to: memory, idle and MFU."""
    row = offer.row
    reached = "" if row.mfu is None else f", {_share(row.mfu)} MFU"
    return f"{capacity.sized(offer)} per device{_tight(offer)}; devices idle {row.idle:.0%} of the time{reached}"


def _tight(offer: Offer) -> str:
    return ": tight" if capacity.tight(offer) else ""


def _share(value: float) -> str:
    """In percent, of little with a digit more."""
    return f"{value:.0%}" if value >= 0.01 else f"{value:.1%}"


def idle(rent: Offer) -> Iterator[str]:
    """Why so much of what is rented idles, where it does, and how many devices would do."""
    if rent.row.idle <= HALF or rent.best.busy >= rent.devices:
        return
    most = max(1, round(rent.best.busy))
    words = f"a step's work is {most:,} times that of its heaviest sample, which one device runs"
    yield f"More than half of {rent.name} idles: {words}. No more devices than that can be busy."


def memory(advice: Advice, rent: Offer, within: Sequence[Offer]) -> Iterator[str]:
    """What is tight, what memory alone decides, and what would fit."""
    if capacity.tight(rent):
        listed = remedies(replace(rent.chosen.way.setting, max_tokens=0))
        beside = f" Options that fit: {'; '.join(listed)}." if listed else ""
        off = "some 5 % off at the median, and some by far more"
        yield f"Memory estimates are {off}, so a tight row may not fit.{beside}"
    yield from _passed_over(advice, rent, within)
    yield from _kept_out(rent)


def _passed_over(advice: Advice, rent: Offer, within: Sequence[Offer]) -> Iterator[str]:
    """What would be cheaper, and is tight."""
    tight = [o for o in within if capacity.level(o) > capacity.level(rent) and o.spent < rent.spent]
    if tight:
        first = min(tight, key=lambda o: o.spent)
        times = f"{duration(first.seconds)} at {first.spent / rent.spent:.2f} times the cost"
        way, limit = first.chosen.way, first.memory_limit or 0.0
        shorter = outliers(way.cost, advice.wish.trace, limit)
        room = f" {shorter}." if shorter else ""
        yield f"{first.name} would take {times}, but is tight: {capacity.sized(first)} per device.{room}"


def _kept_out(rent: Offer) -> Iterator[str]:
    if (kept := rent.best.kept_out) is None:
        return
    what = "is tight in memory" if capacity.tight(kept.need) else "does not fit memory"
    how = f"{kept.way.words}, {kept.way.setting.limit:,} tokens ({capacity.sized(kept.need)})"
    room = f" {kept.shorter}." if kept.shorter else ""
    yield f"This {what}, and would be {kept.gain:.2f} times as fast: {how}.{room}"
