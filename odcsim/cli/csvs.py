"""Rows for spreadsheets: a line for each row, a column for each of its figures."""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcsim.questions.comparison import Comparison


def print_rows(comparisons: "Sequence[tuple[int, Comparison]]") -> None:
    """Of comparisons at several limits, which is a column of its own."""
    print_lines([{"max_tokens": limit, **row.as_json()} for limit, c in comparisons for row in c.rows])


def print_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as their JSON has them."""
    lines = [flat(row) for row in rows]
    writer = csv.DictWriter(sys.stdout, names(lines), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """What an object holds, by the way to it: `idle_parts.push`."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        columns |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return columns


def names(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of all columns, in the order in which they are first met."""
    return list(dict.fromkeys(name for line in lines for name in line))
