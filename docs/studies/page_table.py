"""Tables of pages: Markdown that the studies write."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, figures: bool = False) -> str:
    """`figures`: all columns but the first have their text to the right."""
    ruler = ["---"] + ["--:" if figures else "---"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruler, *rows))
