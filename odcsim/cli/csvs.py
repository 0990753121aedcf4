"""Rows for spreadsheets: a line for each row, a column for each of its figures."""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from odcsim.support import tables

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison


def print_rows(comparisons: "Sequence[tuple[int, Comparison]]", epochs: float | None = None) -> None:
    """Of comparisons at several limits, which is a column of its own; and of so many epochs of each."""
    from odcsim.decide.whole_run import WholeRun

    rows = []
    for limit, comparison in comparisons:
        run = None if epochs is None else WholeRun(comparison, epochs)
        rows += [{"max_tokens": limit, **r.as_json(), **(run.columns(r) if run else {})} for r in comparison.rows]
    print_lines(rows)


def print_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as their JSON has them."""
    write_lines(rows, sys.stdout)


def write_lines(rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    lines = [tables.flat(row) for row in rows]
    writer = csv.DictWriter(out, tables.names(lines), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
