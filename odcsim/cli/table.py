"""Tables for people. Columns keep their width when piped; colours and lines only on a terminal."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from odcsim.support import tables
from odcsim.support.printing import colours, plain

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison
    from odcsim.results.summary import Row

WIDE = 240  # columns when nobody's terminal sets a limit
BAR = 40


def show(rows: "Sequence[Row]") -> None:
    """All columns: one line per row; below those that fit those that do not, with what most of it is."""
    from odcsim.results import summary

    show_texts(*summary.table(rows, summary.WIDE), names=2)


def show_few(rows: "Sequence[Row]") -> None:
    """The columns by which somebody decides, in 80 characters."""
    from odcsim.results import summary

    names = summary.PRICED if any(row.dollars is not None for row in rows) else summary.FEW
    head, cells = summary.table(rows, names)
    show_texts([name.replace(" best ", " best\n") for name in head], cells, names=2, padding=(0, 0, 0, 1))


def show_comparison(comparison: "Comparison", *, wide: bool = False) -> None:
    """What was asked, the rows, and the answer that the report gives in the same words."""
    from odcsim.decide import answer, answer_words, setting_words
    from odcsim.results import summary

    reply = answer.answer(comparison)
    print(setting_words.question(comparison.setting, limited=not comparison.stock))
    if comparison.whole_run is not None:
        print(answer_words.basis(comparison))
    rows = summary.best_first(comparison.rows if wide else answer.rows_to_show(comparison, reply))
    (show if wide else show_few)([comparison.spent(row) for row in rows])
    lines = [
        answer_words.verdict(reply),
        *answer_words.misfit(comparison, reply),
        *answer_words.sentences(comparison, reply),
    ]
    for line in [*lines, f"Cost: {comparison.setting.cost.profile.origin}."]:
        print(line)


def show_run(comparison: "Comparison") -> None:
    """The row to choose over the whole run, where epochs were asked for and one fits."""
    from odcsim.decide import answer, answer_words

    for line in answer_words.whole_run(comparison, answer.answer(comparison)):
        print(line)


def show_texts(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    names: int = 1,
    padding: tuple[int, int, int, int] = (0, 1, 0, 1),
) -> None:
    """Cells that are text already; so many columns name their row."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < names else "right", no_wrap=number < names)
    for row in rows:
        table.add_row(*(plain(cell, "\n") for cell in row))
    _console().print(table)


def show_sweep(swept: "Sequence[tuple[int, Comparison]]") -> None:
    """A line per limit with the speedup of on-demand + lb-mini as a bar."""
    from odcsim.results.summary import COLUMNS

    print("\nspeedup over collective + lb-micro at the same limit, as the limit of a microbatch grows:")
    rows = [("max tokens", "lb-micro", "lb-mini", "  memory", "  (both on-demand)")]
    best = max(c.row("lb-mini", "on-demand").speedup or 0 for _, c in swept)
    mark = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
    for limit, c in swept:
        micro, mini = (c.row(b, "on-demand").speedup or 0 for b in ("lb-micro", "lb-mini"))
        bar = mark * round(BAR * max(0.0, mini - 1) / max(best - 1, 1e-9))
        memory = COLUMNS["memory"].text(c.row("lb-mini", "on-demand"))
        rows.append((f"{limit:,}", f"{micro:.2f}", f"{mini:.2f}", f"  {memory}", f"  {bar}"))
    print(*tables.lines(rows, (12, 10, 10, -19, 0)), sep="\n")


def show_memory(comparison: "Comparison") -> None:
    """The memory of the rows that the answer rests on, term by term."""
    from odcsim.decide import answer

    reply = answer.answer(comparison)
    rows = {r.name: r.memory_terms or {} for r in (reply.reference, reply.rival, reply.best)}
    names = [name for name in reply.reference.memory_terms or {} if any(terms[name] for terms in rows.values())]
    head = ["memory per device, GB", *names, "together"]
    cells = [
        [row, *(f"{terms[n] / 1e9:.1f}" for n in names), f"{sum(terms.values()) / 1e9:.1f}"]
        for row, terms in rows.items()
    ]
    show_texts(head, cells)


def _console() -> Console:
    out: Any = colours()
    if out.isatty():
        return _Console(file=out, markup=False, emoji=False)
    return _Console(file=out, width=WIDE, no_color=True, markup=False, emoji=False, highlight=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Ours to tell, as wherever something is printed."""
        raise
