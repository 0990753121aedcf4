"""Parts of a web page, as HTML. Every word is escaped."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import odcsim
from odcsim import plots
from odcsim.answer import Answer, AnswerTable

RESTS = ". What the model assumes, and what it leaves out: <code>docs/model</code> of odcsim's repository"
RESTS += " beside its source."
NOTES = "How to take this, and how far to trust it"


def with_figures(title: str, body: Iterable[str]) -> str:
    """A document that can show figures, and ends with what made it."""
    footer = f"<footer><p>odcsim {odcsim.__version__}{RESTS}</p></footer>"
    return plots.document(title, [*body, footer], script=plots.script())


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def answer(sentences: Iterable[str], *, yes: bool = True) -> str:
    return f'<div class="answer{"" if yes else " no"}">{"".join(map(paragraph, sentences))}</div>'


def folded(words: str, body: Iterable[str]) -> str:
    """Open to who wants to read it; the words say what it is."""
    return f"<details><summary>{escape(words)}</summary>{''.join(body)}</details>"


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def badge(text: str) -> str:
    return f'<span class="badge">{escape(text)}</span>'


def key_figures(items: Iterable[tuple[str, str]]) -> str:
    """A few numbers to remember, each with what it is."""
    shown = "".join(f"<li><b>{escape(value)}</b><span>{escape(what)}</span></li>" for value, what in items)
    return f'<ul class="figures">{shown}</ul>'


def table(shown: AnswerTable) -> str:
    """Rows of text, the first cell of each its heading, its marks their CSS classes. It scrolls by itself, by keys too;
    its name says to a screen reader what it is in."""
    body = []
    for number, row in enumerate(shown.rows):
        kind = f' class="{shown.marks[number]}"' if shown.marks and shown.marks[number] else ""
        cells = "".join(f"<td>{_lines(cell)}</td>" for cell in row[1:])
        body.append(f'<tr{kind}><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        for text in shown.details[number] if shown.details else ():
            body.append(f'<tr class="detail"><td colspan="{len(shown.head)}">{escape(text)}</td></tr>')
    heads = "".join(f'<th scope="col">{escape(" ".join(name.split()))}</th>' for name in shown.head)
    inner = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll" role="region" aria-label="{escape(shown.name)}" tabindex="0">{inner}</div>'


def of_answer(
    said: Answer, title: str, *, yes: bool, pictures: Mapping[str, Sequence[str]], headed: bool = True
) -> str:
    """An answer as a page. `pictures`: of each table, by its name, or of none. Not `headed`: pictures say what tables
    are."""
    body = [
        heading(title, 1),
        *([answer([said.headline], yes=yes)] if said.headline else []),
        paragraph(said.question, "asked"),
        *([key_figures(said.figures)] if said.figures else []),
        *pictures.get("", ()),
    ]
    for shown in said.tables:
        body += [*([heading(shown.name)] if headed else []), *pictures.get(shown.name, ()), table(shown)]
        body += [paragraph(shown.says, "note")] if shown.says else []
    notes = [heading(NOTES), *map(paragraph, said.sentences)] if said.sentences else []
    return with_figures(title, [*body, *notes])


def _lines(cell: str) -> str:
    """What stands in brackets at a cell's end is its second line."""
    return re.sub(r" (\([^()]*\))$", r"<br><small>\1</small>", escape(cell))


def facts(items: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in items)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'
