"""What the page shows for what is asked: the table, the answer in words, one minibatch twice."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from odcsim import balance
from odcsim.explore.asked import Asked
from odcsim.pages import report as pages
from odcsim.pages.opening import advice
from odcsim.plots.pair import panels
from odcsim.questions import answer
from odcsim.questions.answer import named
from odcsim.questions.break_even import lead, network, planned
from odcsim.questions.break_even_words import sentence
from odcsim.questions.comparison import Comparison, compare, pairs
from odcsim.results import columns

MOST = 16  # devices of a chart that follows a slider


@dataclass(frozen=True, slots=True)
class Reply:
    comparison: Comparison
    basis: answer.Basis

    @property
    def advice(self) -> list[str]:
        return advice(self.comparison, self.basis)

    @property
    def verdict(self) -> str:
        return answer.verdict(self.basis)

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows, best first."""
        return columns.table(columns.best_first(self.comparison.rows), columns.DRAGGED)

    @property
    def chosen(self) -> str:
        return named(self.basis.chosen)


@lru_cache(maxsize=64)
def reply(asked: Asked) -> Reply:
    """Without what takes long and is never recommended here: a shared queue, and plans that are tight."""
    setting = asked.setting
    quick = [p for p in pairs(setting) if not (balance.named(p[0]).queue or balance.named(p[0]).tight)]
    comparison = compare(setting, among=quick)
    return Reply(comparison, answer.answer(comparison))


def chart(asked: Asked) -> dict[str, Any]:
    """What to run against what is run today, as plotly's figure in plain values."""
    found = reply(asked)
    chosen = found.basis.best if found.basis.chosen is found.basis.reference else found.basis.chosen
    both = [row.pair for row in (found.basis.reference, chosen)]
    number = found.comparison.typical(*both)
    timelines = [found.comparison.timeline(*row, number) for row in both]
    return panels(timelines, 0, number=number, most=MOST)


def break_even(asked: Asked) -> str:
    """From which network on it pays, as `odcsim break-even` says it: of fewer minibatches, at this token limit."""
    setting = asked.setting
    plans = planned(setting)  # which no network changes
    curve = network(setting, lambda other: lead(other, plans))
    if curve is None or not curve.leads:
        return ""
    tried = f"{curve.spots[0].label} to {curve.spots[-1].label} {curve.unit}"
    return f"{curve.name.capitalize()}, {tried}: {sentence(curve)}"


def report(asked: Asked) -> str:
    """The whole comparison as a page."""
    return pages.report(compare(asked.setting))
