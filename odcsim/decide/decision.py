"""What a comparison comes to: the rows that decide, and whether on-demand pays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from odcsim import balance, neighbours
from odcsim.decide.comparison import Comparison
from odcsim.errors import InputError
from odcsim.results import capacity
from odcsim.results.summary import REFERENCE, Row

NOTABLE = 1.02  # a lead over the best rival that somebody would change their training loop for
NEAR = 1.01  # of the fastest row's time: costs that are a little off decide who is ahead there


@dataclass(frozen=True, slots=True)
class Flip:
    """With compute of `factor` times the seconds, on-demand has this lead."""

    factor: float
    lead: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The rows that the answer rests on. `pays`: on-demand is faster, by more than chance and than any rival."""

    reference: Row  # collective + lb-micro
    rival: Row  # the best without on-demand
    best: Row  # the best with it
    pays: bool
    flips: Flip | None = None  # where in the interval of the seconds the answer would be another
    kept_out: tuple[tuple[Row, Row], ...] = ()  # faster rows that memory forbids, each after the one in its place
    unit: str = "sample"  # what a minibatch counts
    alone: bool = False  # one GPU, which waits for nobody: on-demand takes no part
    balanced: Row | None = None  # where a trainer was asked for, whose best is the rival: the best that it does not run

    @property
    def chosen(self) -> Row:
        return self.best if self.pays and self.balanced is None else self.rival

    @property
    def drawn(self) -> Row:
        """What is drawn beside the reference: what is chosen, else the best on demand, where there are several GPUs."""
        return self.best if self.chosen is self.reference and not self.alone else self.chosen

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


def decide(comparison: Comparison) -> Decision:
    reference = comparison.row(*REFERENCE)
    ours = [r for r in comparison.rows if r.one_sided]
    theirs = [r for r in comparison.rows if not r.one_sided]
    if not ours:
        raise InputError("no row with on-demand, which the answer needs", fix="compare lb-mini under on-demand, too")

    def slowness(row: Row) -> tuple[float, bool]:
        """Rows as fast as others to 0.01 % make no better choice than the published balancers."""
        return round(row.makespan_seconds / reference.makespan_seconds, 4), not neighbours.named(row.balancer).published

    own = [row for row in theirs if row.pair in comparison.stock]
    beside = [row for row in theirs if row.pair not in comparison.stock]
    rivals, fitting = own or beside, _fitting(ours)
    best, rival = min(fitting, key=slowness), min(_fitting(rivals), key=slowness)
    usual = [r for r in fitting if r.balancer == balance.advised(r.sync)]
    best = min((r for r in usual if r.makespan_seconds <= NEAR * best.makespan_seconds), key=slowness, default=best)
    ahead = rival.makespan_seconds / best.makespan_seconds >= NOTABLE
    alone = comparison.setting.cost.cluster.gpus == 1
    pays = ahead and (best.speedup_low or 0) > 1 and not alone
    decision = Decision(reference, rival, best, pays, alone=alone)
    if own:
        kept = tuple(_kept_out(rival, rivals))
        unit, balanced = comparison.setting.trace.unit, min(_fitting(beside), key=slowness)
        return replace(decision, kept_out=kept, balanced=balanced, unit=unit)
    if alone:
        return replace(decision, kept_out=tuple(_kept_out(rival, rivals)))
    if decision.by_memory:
        decision = replace(decision, pays=capacity.level(best) < capacity.level(rival))
    else:
        decision = replace(decision, flips=_flips(comparison, fitting, _fitting(rivals), pays))
    theirs_out = list(_kept_out(rival, rivals))
    if decision.pays:  # those alone by which nobody would change their training loop
        theirs_out = [pair for pair in theirs_out if pair[1].makespan_seconds < NOTABLE * best.makespan_seconds]
    return replace(decision, kept_out=(*_kept_out(best, ours), *theirs_out))


def rows_to_show(comparison: Comparison, decision: Decision) -> Sequence[Row]:
    """The rows to show first: all, or a trainer's own beside those that its best is compared with. Of one GPU, where
    all syncs are one, those of the first."""
    if decision.balanced is None:
        return [row for row in comparison.rows if row.sync == REFERENCE[1] or not decision.alone]
    beside = (decision.reference, decision.balanced, *(() if decision.alone else (decision.best,)))
    rivals = {balancer.name for balancer in neighbours.FIELD}
    return [row for row in comparison.rows if row.made or row in beside or row.balancer in rivals]


def _fitting(rows: Sequence[Row]) -> list[Row]:
    """Those that fit, else those that are tight, else the one that needs least."""
    fitting = [r for r in capacity.roomiest(rows) if r.memory_fits is not False]
    return fitting or [min(rows, key=lambda r: r.memory_bytes or 0.0)]


def _kept_out(chosen: Row, every: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """The fastest of a side, where memory alone keeps it from being chosen."""
    fuller = [r for r in every if capacity.level(r) > capacity.level(chosen)]
    first = min(fuller, key=lambda r: r.makespan_seconds, default=chosen)
    if first.makespan_seconds * NOTABLE <= chosen.makespan_seconds:
        yield chosen, first


def _flips(comparison: Comparison, ours: Sequence[Row], theirs: Sequence[Row], pays: bool) -> Flip | None:
    """The end of the interval at which the answer would be another. Nothing is known of unbalanced rows, which may be
    all that fit, nor told where both sides are too near to tell."""
    sides = [[comparison.ends[r.pair] for r in rows if r.pair in comparison.ends] for rows in (theirs, ours)]
    if not all(sides):
        return None
    low, middle, high = (min(row[end] for row in sides[0]) / min(row[end] for row in sides[1]) for end in range(3))
    if (middle >= NOTABLE) != pays:
        return None
    profile = comparison.setting.cost.profile
    for factor, lead in ((profile.low, low), (profile.high, high)):
        if (lead >= NOTABLE) != pays:
            return Flip(factor, lead)
    return None
