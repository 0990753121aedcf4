"""Rows for spreadsheets: a line for each row, a column for each of its figures."""

import csv
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from odcsim.support import tables

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison


def print_rows(comparisons: "Iterable[Comparison]") -> None:
    """Of comparisons at several limits, which is a column of its own."""
    print_lines(row for comparison in comparisons for row in comparison.records())


def print_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as their JSON has them."""
    write_lines(rows, sys.stdout)


def write_lines(rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    lines = [tables.flat(row) for row in rows]
    writer = csv.DictWriter(out, tables.names(lines), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
