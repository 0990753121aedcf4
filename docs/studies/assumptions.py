"""Write the table of docs/model/index.md: every assumption, where it stands, and the tests that hold it.

    python docs/studies/assumptions.py

From the pages of that folder; tests/docs/test_assumptions.py tells when it no longer says what they say.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import page_table

FOLDER = Path(__file__).parents[1] / "model"
INDEX = FOLDER / "index.md"
BEGIN, END = "<!-- assumptions -->", "<!-- end of assumptions -->"
_TEST = re.compile(r"`tests/[\w/]+/test_\w+\.py::test_\w+`|`tests/test_\w+\.py::test_\w+`")
_PAGE = re.compile(r"^- \[.*\]\((\S+)\)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Assumption:
    """A section of a page, and the tests that it names."""

    title: str
    where: str
    tests: tuple[str, ...]


def assumptions() -> Iterator[Assumption]:
    """In the order of the index and of its pages."""
    for name in _PAGE.findall(INDEX.read_text(encoding="utf-8")):
        for part in re.split(r"^## ", (FOLDER / name).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            heading, _, body = part.partition("\n")
            place = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            yield Assumption(heading, f"{name}#{place}", tuple(_TEST.findall(body)))


def table() -> str:
    """The first test of each, and how many hold it with that one; its section names them all."""
    rows = [(f"[{a.title}]({a.where})", a.tests[0], str(len(a.tests))) for a in assumptions()]
    return page_table.table(("assumption, and where it stands", "a test that holds it", "of"), rows)


def renewed(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    INDEX.write_text(renewed(INDEX.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
