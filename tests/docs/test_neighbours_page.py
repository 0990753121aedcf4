"""docs/neighbours.md shows what docs/neighbours.csv says.

`python tests/docs/test_neighbours_page.py` writes its tables.
"""

import csv
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "neighbours.md"
TABLES = {
    "questions": ("name", "answers", "take it instead when"),
    "sides": ("name", "needs GPUs", "models communication", "sequence lengths", "changes training", "read"),
}


def rows() -> list[dict[str, str]]:
    with (DOCS / "neighbours.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(columns: tuple[str, ...]) -> str:
    """The rows of the spreadsheet in these columns, names linked, as Markdown."""
    cells = [[f"[{row['name']}]({row['url']})", *(row[column] for column in columns[1:])] for row in rows()]
    return "\n".join("| " + " | ".join(line) + " |" for line in [columns, ["---"] * len(columns), *cells])


def written(text: str) -> str:
    for name, columns in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        head, rest = text.split(begin)
        text = head + begin + "\n" + table(columns) + "\n" + end + rest.split(end)[1]
    return text


def test_the_page_shows_the_spreadsheet():
    text = PAGE.read_text(encoding="utf-8")
    assert written(text) == text


def test_every_row_is_filled_linked_and_dated_and_stands_once():
    names = [row["name"] for row in rows()]
    assert len(names) == len(set(names))
    for row in rows():
        own = row["name"] == "odcsim"
        empty = [key for key, cell in row.items() if not cell.strip() or "|" in cell]
        assert empty == (["better at than odcsim", "take it instead when"] if own else []), row["name"]
        assert row["url"].startswith("https://"), row["name"]
        assert own or re.search(r"read \d{4}-\d\d-\d\d$", row["read"]), row["name"]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
