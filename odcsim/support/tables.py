"""Tables of plain text, which look alike on a terminal and when piped; and objects as columns of one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def lines(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """A line per row. A column of so many characters has its text to the right; one of fewer than 0, to the left."""
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if width > 0 else text.ljust(-width) for text, width in zip(row, widths, strict=True)
        ]
        lines.append("".join(cells).rstrip())
    return lines


def fitted(rows: Sequence[Sequence[str]]) -> list[int]:
    """Columns with their text to the left, two characters wider than their widest."""
    return [-max(map(len, column)) - 2 for column in zip(*rows, strict=True)]


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """What an object holds, by the way to it: `idle_parts.push`."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        columns |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return columns


def names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of all columns, in the order in which they are first met."""
    return list(dict.fromkeys(name for row in rows for name in row))
