"""A web page as one string that needs nothing from outside, neither network nor file. Every word is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

# Nothing may be fetched, whatever a later change puts into the page.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, body: Iterable[str], *, script: str = "") -> str:
    """`body` is HTML already; the title is text."""
    style = files("odcsim.pages").joinpath("page.css").read_text(encoding="utf-8")
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n{script}\n</head>\n<body>\n<main>",
            *body,
            "</main>\n</body>\n</html>\n",
        )
    )


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def badge(text: str) -> str:
    return f'<span class="badge">{escape(text)}</span>'


def key_figures(items: Iterable[tuple[str, str]]) -> str:
    """A few numbers to remember, each with what it is."""
    shown = "".join(f"<li><b>{escape(value)}</b><span>{escape(what)}</span></li>" for value, what in items)
    return f'<ul class="figures">{shown}</ul>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = ()) -> str:
    """Rows of text, the first cell of each its heading. `kinds` are the rows' CSS classes."""
    body = []
    for number, row in enumerate(rows):
        kind = f' class="{kinds[number]}"' if kinds and kinds[number] else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        body.append(f'<tr{kind}><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def facts(items: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in items)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'
