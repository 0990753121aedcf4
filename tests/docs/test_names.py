"""Pages and notebooks build on public names only: whoever copies from them copies what stays."""

import re
from pathlib import Path
from textwrap import dedent

import pytest
from public import missing, private
from scripts import ROOT

BLOCK = re.compile(r"^ *```python[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# It records experiments on what is inside, and may use it; that its commands still run is a slow test of test_docs.py.
FREE = {"log.md"}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
OTHERS = [
    path for folder in ("docs/studies", "tests/benchmarks", "traces") for path in sorted((ROOT / folder).glob("*.py"))
]


def programs(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [text] if page.suffix == ".py" else [dedent(block) for block in BLOCK.findall(text)]


def test_there_are_programs_to_look_at():
    assert NOTEBOOKS
    assert len([page for page in PAGES if programs(page)]) >= 4
    assert programs(ROOT / "docs/log.md")


@pytest.mark.parametrize("page", PAGES + NOTEBOOKS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_programs_take_public_names_alone(page):
    assert [name for code in programs(page) if page.name not in FREE for name in private(code)] == []


@pytest.mark.parametrize("page", OTHERS + PAGES + NOTEBOOKS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_programs_take_is_there(page):
    """Also what a benchmark or a study asks for only when it is run in full, and what the log takes from inside."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    assert [name for code in programs(page) for name in missing(code)] == []
