"""Answers and tables as lines of a terminal, which look alike when piped."""

import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap

from odcsim.answer import Answer, AnswerTable
from odcsim.support.printing import plain

LINE, INDENT = 79, "    "  # of tables whose rows have details
NAME = 12  # characters that a name has in any case
DRAWN = str.maketrans({"─": "-", "█": "#"})  # where a terminal has ASCII alone


def show(answer: Answer) -> None:
    """The headline, what was asked, tables, and every sentence."""
    lines = [*filter(None, (answer.headline, answer.question))]
    for table in answer.tables:
        of_table = list(table_lines(table))
        lines += of_table[1:] if lines and not lines[-1] else of_table  # one blank line between two
        lines += [table.says] if table.says else []
    print(*lines, *answer.sentences, sep="\n", flush=True)  # before what comes on stderr


def show_table(table: AnswerTable) -> None:
    """A table by itself, under its name."""
    print("", table.name, *table_lines(table), sep="\n")


def table_lines(table: AnswerTable) -> Iterator[str]:
    """Columns that name a row have their text to the left, and figures to the right. Beneath a row are its details."""
    if not table.rows:
        return
    rows = [[plain(cell, "\n") for cell in row] for row in (table.head, *table.rows)]
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]
    if table.details:
        widths[0] = min(widths[0], max(NAME, LINE - sum(widths[1:]) - 2 * len(widths) + 1))
    names = [number < table.names for number in range(len(widths))]

    def spread(row: Sequence[str], *, upwards: bool = False) -> Iterator[str]:
        """A row in as many lines as its cells take."""
        first = wrap(row[0], widths[0], subsequent_indent="  ", break_on_hyphens=False) if table.details else []
        blocks = [first or row[0].split("\n"), *(cell.split("\n") for cell in row[1:])]
        blocks = [block[::-1] for block in blocks] if upwards else blocks
        lines = []
        for cells in zip_longest(*blocks, fillvalue=""):
            every = zip(cells, widths, names, strict=True)
            lines.append("  ".join(cell.ljust(wide) if name else cell.rjust(wide) for cell, wide, name in every))
        yield from (f" {line}".rstrip() for line in (lines[::-1] if upwards else lines))

    utf = "utf" in (sys.stdout.encoding or "").lower()
    yield ""
    yield from spread(rows[0], upwards=True)
    rule = f" {'─' * (sum(widths) + 2 * len(widths) - 2)}"
    yield rule if utf else rule.translate(DRAWN)
    for number, row in enumerate(rows[1:]):
        yield from (line if utf else line.translate(DRAWN) for line in spread(row))
        for text in table.details[number] if table.details else ():
            more = f"{INDENT}  "
            yield from wrap(plain(text), LINE, initial_indent=INDENT, subsequent_indent=more, break_on_hyphens=False)
    yield ""
