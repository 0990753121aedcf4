"""What the page shows for what is asked: the table, the answer in words, one minibatch twice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from odcsim import neighbours
from odcsim.answer import Answer
from odcsim.decide.break_even import draw, lead, network, plans
from odcsim.decide.comparison import Comparison, compare, pairs
from odcsim.decide.decision import Decision, decide, rows_to_show
from odcsim.decide.levers import levers as found_levers
from odcsim.decide.setting import Drawn, Setting, assign
from odcsim.plots.gantt import panels
from odcsim.results.summary import best_first, priced
from odcsim.say import row_words
from odcsim.say.break_even_words import sentence
from odcsim.say.comparison_words import advice, headline
from odcsim.say.lever_words import answer
from odcsim.schedule import ScheduleFile
from odcsim.show.explore.controls import ROWS, PageQuestion, rows
from odcsim.show.pages import report as pages
from odcsim.support.budget import memoize

PLANNED = 2**18  # samples of plans that are remembered, each by some ten balancers: some 300 MB
MOST = 16  # devices of a chart that follows a slider


@dataclass(frozen=True, slots=True)
class Reply:
    comparison: Comparison
    decision: Decision

    @property
    def advice(self) -> list[str]:
        """Hours and dollars of as many epochs as are asked for."""
        return advice(self.comparison, self.decision)

    @property
    def verdict(self) -> str:
        return headline(self.decision)

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows, best first."""
        alone = self.decision.alone
        rows = best_first(rows_to_show(self.comparison, self.decision) if alone else self.comparison.rows)
        return row_words.table([self.comparison.spent(row) for row in rows], row_words.DRAGGED)

    @property
    def chosen(self) -> str:
        return self.decision.chosen.name


@memoize(ROWS, lambda found, _: rows(found.comparison.setting))
def reply(asked: PageQuestion) -> Reply:
    """What a price changes is its dollars alone, and epochs no row."""
    found, price = _compared(asked.bare), asked.price
    setting = replace(found.setting, price=price, epochs=asked.epochs)
    comparison = replace(found, setting=setting, rows=tuple(priced(row, price) for row in found.rows))
    return Reply(comparison, decide(comparison))


@memoize(ROWS, lambda found, _: rows(found.setting))
def _compared(asked: PageQuestion) -> Comparison:
    """Without what takes long and is never recommended here: a shared queue."""
    setting = asked.setting
    quick = [p for p in pairs(setting) if not neighbours.named(p[0]).queue]
    return compare(setting, among=quick, plan=lambda *given: _planned(asked, *given))


def _planned(asked: PageQuestion, setting: Setting, balancer: str, minibatches: Sequence[Drawn]) -> ScheduleFile:
    """As far as a network is nothing to the balancer, the plan that was made with another one."""
    key = asked if neighbours.named(balancer).weighs_transfers else replace(asked, network=0)
    known = _plans(replace(key.bare, room=0.0), setting.limit, len(minibatches), minibatches[0].unassigned)
    if balancer not in known:
        known[balancer] = assign(setting, balancer, minibatches)
    return known[balancer]


def drawn(asked: PageQuestion) -> int:
    """Samples."""
    return asked.minibatches * asked.share * asked.workers


@memoize(PLANNED, lambda *given: drawn(given[1]))
def _plans(*_of: Any) -> dict[str, ScheduleFile]:
    """By balancer, of the last questions, limits and minibatches: how many, and the first of them."""
    return {}


def chart(asked: PageQuestion) -> dict[str, Any]:
    """What to run against what is run today, as plotly's figure in plain values."""
    found = reply(asked)
    beside = found.decision.drawn
    if beside is found.decision.reference:  # of one GPU: against what packs worst
        beside = max(rows_to_show(found.comparison, found.decision), key=lambda row: row.makespan_seconds)
    both = [row.pair for row in (found.decision.reference, beside)]
    number = found.comparison.typical(*both)
    timelines = [found.comparison.timeline(*row, number) for row in both]
    return panels(timelines, 0, number=number, most=MOST)


def break_even(asked: PageQuestion) -> str:
    """From which network on it pays, as `odcsim break-even` says it: of fewer minibatches, at this token limit."""
    return _broken_even(asked.bare)


@memoize(ROWS, lambda *_: 1)
def _broken_even(asked: PageQuestion) -> str:
    setting = asked.setting
    known = plans(setting, lambda *given: _planned(asked, *given))  # which no network changes
    curve = draw(network(setting), lambda cost: lead(replace(setting, cost=cost), known))
    if not curve.leads:
        return ""
    tried = f"{curve.spots[0].label} to {curve.spots[-1].label} {curve.unit}"
    return f"{curve.name.capitalize()}, {tried}: {sentence(curve)}"


@memoize(ROWS, lambda *_: 1)
def levers(asked: PageQuestion) -> Answer:
    """Why devices idle, and what would cost less, as `odcsim compare` says it."""
    return answer(found_levers(reply(asked).comparison))


def report(asked: PageQuestion) -> str:
    """The whole comparison as a page."""
    return pages.report(compare(asked.setting), epochs=asked.epochs)
