"""What a comparison comes to: the rows that decide, and whether on-demand pays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from odcsim import balance, neighbours
from odcsim.errors import InputError
from odcsim.results import capacity
from odcsim.results.summary import REFERENCE, Row

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison  # which tells of itself by these

NOTABLE = 1.02  # a lead over the best rival that somebody would change their training loop for
NEAR = 1.01  # of the fastest row's time: costs that are a little off decide who is ahead there


@dataclass(frozen=True, slots=True)
class Flip:
    """With compute of `factor` times the seconds, on-demand has this lead."""

    factor: float
    lead: float


@dataclass(frozen=True, slots=True)
class Basis:
    """The rows that the answer rests on. `pays`: on-demand is faster, by more than chance and than any rival."""

    reference: Row  # collective + lb-micro
    rival: Row  # the best without on-demand
    best: Row  # the best with it
    pays: bool
    flips: Flip | None = None  # where in the interval of the seconds the answer would be another
    kept_out: tuple[tuple[Row, Row], ...] = ()  # faster rows that memory forbids, each after the one in its place
    unit: str = "sample"  # what a minibatch counts
    balanced: Row | None = None  # where a trainer was asked for, whose best is the rival: the best that it does not run

    @property
    def chosen(self) -> Row:
        return self.best if self.pays and self.balanced is None else self.rival

    @property
    def nothing_fits(self) -> bool:
        return self.rival.memory_fits is False and (self.best.memory_fits is False or self.balanced is not None)

    @property
    def by_memory(self) -> bool:
        """Whether memory says more of one of the two sides than of the other, or forbids both."""
        levels = {capacity.level(self.best), capacity.level(self.rival)}
        return len(levels) > 1 or capacity.OVER in levels

    @property
    def over_rival(self) -> float:
        return self.rival.makespan_seconds / self.best.makespan_seconds


def answer(comparison: Comparison) -> Basis:
    reference = comparison.row(*REFERENCE)

    def slowness(row: Row) -> tuple[float, bool]:
        """Rows as fast as others to 0.01 % make no better choice than the published balancers."""
        return round(row.makespan_seconds / reference.makespan_seconds, 4), not neighbours.named(row.balancer).published

    all_ours, all_theirs = _candidates(comparison)
    own = [row for row in all_theirs if row.pair in comparison.stock]
    beside = [row for row in all_theirs if row.pair not in comparison.stock]
    all_theirs = own or beside
    ours, theirs = _fitting(all_ours), _fitting(all_theirs)
    best = min(ours, key=slowness)
    usual = [r for r in ours if r.balancer == balance.advised(r.sync)]
    best = min((r for r in usual if r.makespan_seconds <= NEAR * best.makespan_seconds), key=slowness, default=best)
    rival = min(theirs, key=slowness)
    ahead = rival.makespan_seconds / best.makespan_seconds >= NOTABLE
    pays = ahead and (best.speedup_low or 0) > 1
    reply = Basis(reference, rival, best, pays)
    if own:
        kept = tuple(_kept_out(rival, all_theirs))
        unit, balanced = comparison.setting.trace.unit, min(_fitting(beside), key=slowness)
        return replace(reply, kept_out=kept, balanced=balanced, unit=unit)
    if reply.by_memory:
        reply = replace(reply, pays=capacity.level(best) < capacity.level(rival))
    else:
        reply = replace(reply, flips=_flips(comparison, ours, theirs, pays))
    theirs_out = [pair for pair in _kept_out(rival, all_theirs) if not reply.pays or _near(pair[1], best)]
    return replace(reply, kept_out=(*_kept_out(best, all_ours), *theirs_out))


def _near(rival: Row, best: Row) -> bool:
    """Whether nobody would change their training loop for the best of them, if the rival fitted."""
    return rival.makespan_seconds < NOTABLE * best.makespan_seconds


def told(comparison: Comparison, reply: Basis) -> Sequence[Row]:
    """The rows to show first: all, or a trainer's own beside those that its best is compared with."""
    if reply.balanced is None:
        return comparison.rows
    beside = (reply.reference, reply.balanced, reply.best)
    rivals = {balancer.name for balancer in neighbours.FIELD}
    return [row for row in comparison.rows if row.made or row in beside or row.balancer in rivals]


def _kept_out(chosen: Row, every: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """The fastest of a side, where memory alone keeps it from being chosen."""
    fuller = [r for r in every if capacity.level(r) > capacity.level(chosen)]
    first = min(fuller, key=lambda r: r.makespan_seconds, default=chosen)
    if first.makespan_seconds * NOTABLE <= chosen.makespan_seconds:
        yield chosen, first


def _candidates(comparison: Comparison) -> tuple[list[Row], list[Row]]:
    """The rows to choose from, with on-demand and without, whatever memory they need."""
    ours = [r for r in comparison.rows if r.one_sided]
    theirs = [r for r in comparison.rows if not r.one_sided]
    if not ours:
        raise InputError("no row with on-demand, which the answer needs", fix="compare lb-mini under on-demand, too")
    return ours, theirs


def _fitting(rows: Sequence[Row]) -> list[Row]:
    """Those that fit, else those that are tight, else the one that needs least."""
    fitting = [r for r in capacity.roomiest(rows) if r.memory_fits is not False]
    return fitting or [min(rows, key=lambda r: r.memory_bytes or 0.0)]


def _flips(comparison: Comparison, ours: Sequence[Row], theirs: Sequence[Row], pays: bool) -> Flip | None:
    """Whether the answer holds at both ends of the interval, of seconds that come with one."""
    if comparison.ends is None or not all(_balanced(comparison.ends.middle, rows) for rows in (ours, theirs)):
        return None

    def lead(seconds: Mapping[tuple[str, str], float]) -> float:
        pairs = ([(r.balancer, r.sync) for r in rows] for rows in (theirs, ours))
        rival, best = (min(seconds[pair] for pair in some if pair in seconds) for some in pairs)
        return rival / best

    if (lead(comparison.ends.middle) >= NOTABLE) != pays:  # too near to tell
        return None
    profile, ends = comparison.setting.cost.profile, comparison.ends
    for factor, seconds in ((profile.low, ends.low), (profile.high, ends.high)):
        if ((at := lead(seconds)) >= NOTABLE) != pays:
            return Flip(factor, at)
    return None


def _balanced(seconds: Mapping[tuple[str, str], float], rows: Sequence[Row]) -> bool:
    """Whether the interval's ends are known of any: of unbalanced rows, which may be all that fit, they are not."""
    return any((r.balancer, r.sync) in seconds for r in rows)
