"""An answer: what a result says. A terminal, a page, a notebook and Python show this one value.

Results hold figures. `odcsim.say` makes answers of them, a module for each kind of result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module

from odcsim.errors import in_python
from odcsim.support.printing import printable

MOST = 40  # rows of a table in a notebook


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Cells of text beneath their heads."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    name: str = ""
    names: int = 1  # the first columns, which name their row
    marks: Sequence[str] = ()  # of each row: "best", "reference" or nothing
    details: Sequence[Sequence[str]] = ()  # of each row: lines beneath it
    says: str = ""  # what the table comes to


@dataclass(frozen=True, slots=True)
class Answer:
    """`about`: of what, in a few words; `question`: the same in full. The headline says what to do; sentences say why,
    and how far to trust it. `figures`: a few numbers to remember, each with what it is."""

    kind: str  # of result: "Comparison"
    about: str
    headline: str = ""
    question: str = ""
    tables: Sequence[AnswerTable] = ()
    sentences: Sequence[str] = ()
    figures: Sequence[tuple[str, str]] = ()

    def words(self) -> Iterator[str]:
        """All sentences, the headline first; of a table what it comes to, and each row that has details."""
        yield from filter(None, [self.headline, *self.question.splitlines()])
        for table in self.tables:
            for row, details in zip(table.rows, table.details, strict=False):
                cells = ", ".join(f"{head} {cell}" for head, cell in zip(table.head[1:], row[1:], strict=True))
                yield f"{row[0]}: {cells}; {'; '.join(details)}." if details else f"{row[0]}: {cells}."
            if table.says:
                yield f"{table.name}: {table.says}" if table.name else table.says
        yield from self.sentences

    @property
    def line(self) -> str:
        """Where Python prints it."""
        first = self.headline.partition(". ")[0].rstrip(".")
        return printable(in_python(f"<{self.kind}: {': '.join(filter(None, (self.about, first)))}>"))

    @property
    def html(self) -> str:
        """Where a notebook shows it: every word escaped, in the notebook's own style."""
        headline = f"<p><b>{_text(self.headline)}</b></p>" if self.headline else ""
        tables = "".join(map(_table, self.tables))
        below = "".join(f"<p>{_text(line)}</p>" for line in (*self.sentences, self.question) if line)
        return f"<div><p>{_text(f'{self.kind}: {self.about}')}</p>{headline}{tables}{below}</div>"


def _table(table: AnswerTable) -> str:
    if not table.rows:
        return ""
    head = "".join(f'<th scope="col">{_text(" ".join(name.split()))}</th>' for name in table.head)
    body = []
    for number, (first, *rest) in enumerate(table.rows[:MOST]):
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in rest)
        body.append(f'<tr><th scope="row">{_text(first)}</th>{cells}</tr>')
        for line in table.details[number] if table.details else ():
            body.append(f'<tr><td colspan="{len(table.head)}">{_text(line)}</td></tr>')
    more = f"<p>... and {left:,} more</p>" if (left := len(table.rows) - MOST) > 0 else ""
    says = f"<p>{_text(table.says)}</p>" if table.says else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>{more}{says}"


def _text(text: str) -> str:
    return escape(in_python(text))


class Printable:
    """Something that Python prints in one line, and a notebook as a small table."""

    __slots__ = ()

    def _answer(self) -> Answer:
        """By `odcsim.say`, which knows figures of all rooms, and which no room of figures imports."""
        answer: Answer = import_module("odcsim.say").answer(self)
        return answer

    def __repr__(self) -> str:
        return self._answer().line

    def _repr_html_(self) -> str:
        return self._answer().html


class Result(Printable):
    """What a command found."""

    __slots__ = ()

    def sentences(self) -> list[str]:
        """What it comes to, the sentence that matters first."""
        return list(self._answer().words())
