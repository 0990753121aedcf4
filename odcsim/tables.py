"""Tables of plain text, which look alike on a terminal and when piped."""

from collections.abc import Iterable, Sequence


def lines(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """A line per row. A column of so many characters has its text to the right; one of fewer than 0, to the left."""
    pairs = (zip(row, widths, strict=True) for row in rows)
    return ["".join(_cell(text, width) for text, width in row).rstrip() for row in pairs]


def fitted(rows: Sequence[Sequence[str]]) -> list[int]:
    """Columns with their text to the left, two characters wider than their widest."""
    return [-max(map(len, column)) - 2 for column in zip(*rows, strict=True)]


def _cell(text: str, width: int) -> str:
    return text.rjust(width) if width > 0 else text.ljust(-width)
