"""Which rows a report shows at once, and which it folds since nobody would choose them."""

from collections.abc import Sequence

from odcsim.decide.answer import Basis
from odcsim.decide.comparison import Comparison
from odcsim.results import summary
from odcsim.results.summary import Row
from odcsim.show.pages import page
from odcsim.support.numbers import counted


def rows(comparison: Comparison, reply: Basis) -> list[str]:
    """The rows that the answer names and the best of each sync, and behind a line to open all others."""
    shown, folded = parted(comparison, reply)
    table = _table(comparison, shown, reply, "The rows to choose from")
    if not folded:
        return [table]
    words = f"{counted(len(folded), 'more row')}: slower than the best of their sync, or over memory"
    return [table, page.folded(words, [_table(comparison, folded, reply, "Every other row")])]


def parted(comparison: Comparison, reply: Basis) -> tuple[list[Row], list[Row]]:
    """Both in order of speed, those that do not fit last."""
    ordered = summary.best_first(comparison.rows)
    best = {row.sync: row.pair for row in reversed(ordered)}
    known = {*best.values(), *(row.pair for row in (reply.reference, reply.rival, reply.best))}
    return [r for r in ordered if r.pair in known], [r for r in ordered if r.pair not in known]


def _table(comparison: Comparison, ordered: Sequence[Row], reply: Basis, name: str) -> str:
    kinds = ["best" if r is reply.chosen else "reference" if r is reply.reference else "" for r in ordered]
    spent = [comparison.spent(row) for row in ordered]
    return page.table(*summary.table(spent, summary.PAGE), kinds, name=f"{name}: of {comparison.basis}")
