"""The programs behind the pages start, and need nothing but what is installed and what lies beside them."""

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from scripts import ROOT, load
from sources import outside

HOME = ROOT / "docs/studies"
STUDIES = sorted(HOME.glob("*.py"))
STARTED = [path for path in STUDIES if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
HEAVY = {"odc_engine": "torch", "torch": "torch", "transformers": "transformers"}  # what may be missing, by what asks
PAGE = "```console\n$ echo 2\n1\n```\n"


def named(paths: list[Path]):
    return pytest.mark.parametrize("program", paths, ids=lambda path: path.stem)


def installed() -> set[str]:
    """Packages that the project names, as they are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *extras["engine"], *extras["trainers"]]
    return {re.split(r"\W", name, maxsplit=1)[0] for name in listed}


def needs(program: Path) -> set[str]:
    """Packages that have to be there for it, as have those of the programs that it imports."""
    found, left = set(), [program]
    while left:
        own = outside(left.pop())
        left += [HOME / f"{name}.py" for name in own - found if (HOME / f"{name}.py").exists()]
        found |= own
    return found


def start(program: Path, *arguments: str) -> int:
    """What it exits with when it is called in its folder's company."""
    for name in needs(program) & HEAVY.keys():
        pytest.importorskip(HEAVY[name], reason=f"{program.name} needs {name}")
    before, sys.argv = sys.argv, [str(program), *arguments]
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as left:
        return int(left.code or 0)
    finally:
        sys.argv = before
    return 0


def test_there_are_programs_of_both_kinds():
    assert len(STARTED) >= 9
    assert len(STUDIES) >= len(STARTED) + 8


@named(STUDIES)
def test_it_needs_what_is_installed_and_what_lies_beside_it(program):
    """Not the tests' helpers, which would be found here and nowhere else."""
    beside = {path.stem for path in STUDIES}
    assert outside(program) - beside <= installed() | {"odcsim", "odc_engine"}


@named(STUDIES)
def test_it_can_be_imported(program):
    for name in needs(program) & HEAVY.keys():
        pytest.importorskip(HEAVY[name])
    assert load(str(program.relative_to(ROOT))).__doc__


@named(STARTED)
def test_it_starts_and_says_what_it_takes(program, capsys):
    assert start(program, "--help") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: {program.name}")
    assert "\noptions:\n" in printed


def test_a_page_is_refreshed(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert start(HOME / "refresh.py", str(page)) == 0
    assert start(HOME / "refresh.py", str(page)) == 0
    assert capsys.readouterr().out == "page.md: rewritten\npage.md: holds\n"
    assert page.read_text() == PAGE.replace("\n1\n", "\n2\n")


def test_the_table_of_split_samples_is_written(tmp_path):
    assert start(HOME / "split.py", "--draws", "1", "-o", str(tmp_path / "split.md")) == 0
    assert (tmp_path / "split.md").read_text().count("\n| ") > 5


@pytest.mark.slow
def test_queues_are_run(capsys):
    assert start(HOME / "queues.py", "--minibatches", "1") == 0
    assert capsys.readouterr().out.count("\n") > 4
