"""The order of pages is that of the pages that list them, so a page that is listed is on the site."""

import posixpath
import re

_PAGE = re.compile(r"\]\(([^)#\s]+\.md)\)")
_LISTED = re.compile(r"^(?:- |\d+\. ).*\n(?:  +.*\n)*", re.MULTILINE)


def sections(text: str, index: str) -> list[tuple[str, list[str]]]:
    """Headings of an index, and the pages that the lists beneath them name; what lies outside its folder is not its."""
    here = posixpath.dirname(index)
    found = []
    for part in re.split(r"^## ", f"\n{text}", flags=re.MULTILINE):
        title, _, body = part.partition("\n")
        links = [posixpath.normpath(posixpath.join(here, link)) for link in listed(body)]
        found.append((title, [link for link in dict.fromkeys(links) if link.startswith(here) and link[0] != "."]))
    return [(title, links) for title, links in found if links]


def listed(text: str) -> list[str]:
    """Pages that lists link to."""
    return [link for item in _LISTED.findall(text) for link in _PAGE.findall(item)]


def tree(title: str, index: str, pages: list[str]) -> str:
    """A table of contents that the page does not show: its lists say the same."""
    here = posixpath.dirname(index) or "."
    names = "\n".join(posixpath.relpath(page.removesuffix(".md"), here) for page in pages)
    caption = f":caption: {title}\n" if title else ""
    return f"```{{toctree}}\n:hidden:\n{caption}\n{names}\n```\n"
