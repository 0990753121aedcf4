"""A diagnosis for people: the answer, tables of at most 80 columns, and what they rest on."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from odcsim.support import tables

if TYPE_CHECKING:
    from odcsim.decide.diagnosis.asking import Diagnosis
    from odcsim.decide.diagnosis.found import Changes

LINE, INDENT = 80, "    "
PARTS, RANKS, LATE = (-42, 10, 10, 17), (4, 10, 10, 18, 16), (4, 6, 12, 10, 16, 0)
WAYS = (6, 15, 10, 13)


def show(found: "Diagnosis") -> None:
    print(*lines(found), sep="\n")


def lines(told: "Diagnosis") -> Iterator[str]:
    from odcsim.decide.diagnosis import columns, words

    run, found, changes = told.run, told.found, told.changes
    yield words.answer(run, found, changes)
    yield words.seen(run)
    yield from _table(columns.parts(found), PARTS)
    head, rows = columns.ranks(found)
    yield from _table((head, rows), RANKS)
    if rows and (more := len(found.ranks) - len(rows)):
        yield f"and {more:,} more"
    yield from _table(columns.late(found), LATE)
    yield from _ways(changes)
    closing = [*words.remedies(run, found), *words.rests(changes), *words.untold(run, found, changes)]
    yield from ["", *closing] if closing else []


def _table(table: tuple[Sequence[str], Sequence[Sequence[str]]], widths: Sequence[int]) -> Iterator[str]:
    head, rows = table
    if rows:
        spaced = [[f"  {cells[-1]}" if width == 0 else cell for cell, width in zip(cells, widths, strict=True)]
                  for cells in (head, *rows)]  # fmt: skip
        yield ""
        yield from tables.lines(spaced, widths)


def _ways(changes: "Changes") -> Iterator[str]:
    """Figures and the way on a line; beneath it what to set, and what that rests on."""
    from odcsim.decide.diagnosis import columns

    if not changes.ways:
        return
    head, rows = columns.ways(changes)
    yield ""
    yield from _row("way, least effort first", head[2:])
    for one, cells in zip(changes.ways, rows, strict=True):
        yield from _row(f"{cells[1]}: {cells[0]}", cells[2:])
        told = [f"set {one.setting}" if one.setting else "", f"rests on: {one.rests}" if one.rests else ""]
        for text in filter(None, told):
            yield from wrap(text, LINE, initial_indent=INDENT, subsequent_indent=f"{INDENT}  ", break_on_hyphens=False)


def _row(name: str, figures: Sequence[str]) -> Iterator[str]:
    """The name, in as many lines as it takes, with its figures beside the first."""
    wide = LINE - sum(WAYS[: len(figures)])
    first, *rest = wrap(name, wide - 1, subsequent_indent="  ", break_on_hyphens=False) or [""]
    yield from tables.lines([[first, *figures]], [-wide, *WAYS[: len(figures)]])
    yield from rest
