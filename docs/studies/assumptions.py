"""Renew the table of docs/model/index.md: every assumption, where it stands, and the tests that rely on it.

    python docs/studies/assumptions.py

Assumptions are the sections of the pages of that folder, in their order. Each keeps the tests that the table names; a
new one has none until somebody writes them there, which tests/docs/test_studies.py tells.
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
_PAGE = re.compile(r"^- \[.*\]\((\S+)\)", re.MULTILINE)
_GROUP = re.compile(r"^\| \[.*\]\((\S+)\) \|(.*\n(?:\|  \|.*\n)*)", re.MULTILINE)  # an assumption, and its rows
_TEST = re.compile(r"`tests/(?:\w+/)*test_\w+\.py::test_\w+`")


@dataclass(frozen=True, slots=True)
class Assumption:
    """A section of a page, and the tests that rely on it."""

    title: str
    where: str
    tests: tuple[str, ...]

    def rows(self) -> Iterator[tuple[str, str]]:
        """One for each test."""
        yield f"[{self.title}]({self.where})", self.tests[0] if self.tests else ""
        yield from (("", test) for test in self.tests[1:])


def assumptions(index: str) -> Iterator[Assumption]:
    """In the order of the index and of its pages."""
    tests = {where: tuple(_TEST.findall(rows)) for where, rows in _GROUP.findall(index)}
    for name in _PAGE.findall(index):
        for part in re.split(r"^## ", (FOLDER / name).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            heading = part.partition("\n")[0]
            place = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            where = f"{name}#{place}"
            yield Assumption(heading, where, tests.get(where, ()))


def table(index: str) -> str:
    rows = [row for assumption in assumptions(index) for row in assumption.rows()]
    return page_table.table(("assumption, and where it stands", "what relies on it"), rows)


def renewed(index: str) -> str:
    before, _, rest = index.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(index)}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    INDEX.write_text(renewed(INDEX.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
