"""Every link of a built site, followed to a file and to a place in it; and nothing loaded from elsewhere."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src"}


@dataclass
class _Read(HTMLParser):
    """What a page links to, what it loads, and the places in it that a link can name."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in _LOADS and given.get(_LOADS[tag]):
            self.loads.append(given[_LOADS[tag]])


def broken(folder: Path) -> list[str]:
    """A line for each link that leads nowhere, and for each thing that is loaded from elsewhere."""
    folder = folder.resolve()
    pages = {path: _read(path) for path in sorted(folder.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        wrong += [f"{name}: loads {load} from elsewhere" for load in page.loads if _elsewhere(load)]
        for link in [link for link in page.links + page.loads if not _elsewhere(link) and link[:5] != "data:"]:
            parts = urlsplit(link)
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not goal.is_file():
                wrong.append(f"{name}: {link} leads to no file")
            elif goal in pages and parts.fragment and unquote(parts.fragment) not in pages[goal].places:
                wrong.append(f"{name}: {link} leads to no place in it")
    return wrong


def _read(path: Path) -> _Read:
    page = _Read()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def _elsewhere(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "mailto")
