"""A result at a glance: one line where Python prints it, a small table where a notebook shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from odcsim.errors import in_python
from odcsim.support.printing import printable

MOST = 40  # rows of a table in a notebook


@dataclass(frozen=True, slots=True)
class Glance:
    """What it is, what it says, and a table of it, whose rows begin with their heading. `detail`: what a notebook has
    room for, and a line has not."""

    kind: str
    about: str
    answer: Sequence[str] = ()  # sentences, the one that matters first
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    detail: str = ""

    @property
    def line(self) -> str:
        answer = self.answer[0].partition(". ")[0].rstrip(".") if self.answer else ""
        return printable(in_python(f"<{self.kind}: {': '.join(filter(None, (self.about, answer)))}>"))

    @property
    def html(self) -> str:
        """Every word escaped, and in a notebook's own style."""
        answer = "".join(f"<p>{'<b>' if n == 0 else ''}{_told(text)}{'</b>' if n == 0 else ''}</p>"
                         for n, text in enumerate(self.answer))  # fmt: skip
        detail = f"<p>{_told(self.detail)}</p>" if self.detail else ""
        return f"<div><p>{_told(f'{self.kind}: {self.about}')}</p>{answer}{self._table()}{detail}</div>"

    def _table(self) -> str:
        if not self.rows:
            return ""
        head = "".join(f'<th scope="col">{_told(name)}</th>' for name in self.head)
        body = "".join(f"<tr>{_cells(row)}</tr>" for row in self.rows[:MOST])
        more = f"<p>... and {left:,} more</p>" if (left := len(self.rows) - MOST) > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cells(row: Sequence[str]) -> str:
    first, *rest = row
    return f'<th scope="row">{_told(first)}</th>{"".join(f"<td>{_told(cell)}</td>" for cell in rest)}'


def _told(text: str) -> str:
    return escape(in_python(text))


class Glanced:
    """A result that tells of itself in short; whoever wants all of it asks its fields."""

    __slots__ = ()

    def _glance(self) -> Glance:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._glance().line

    def _repr_html_(self) -> str:
        return self._glance().html
