"""The programs behind the pages start, and need nothing but what is installed and what lies beside them."""

import re
import runpy
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import ROOT, load
from sources import everything, programs

HOME = "docs/studies/"
PAGE = "```console\n$ echo 2\n1\n```\n"
HEAVY = {"odc_engine": "torch", "torch": "torch", "transformers": "transformers"}  # what may be missing, by what asks
BESIDE = [one for one in programs(everything(), "docs/studies") if one.name.count("/") == 2]
STUDIES = {one.name.removeprefix(HOME): one for one in BESIDE}
assumptions = load("docs/studies/assumptions.py")
INDEX = assumptions.INDEX.read_text(encoding="utf-8")
PACKAGES = {name: one.packages for name, one in STUDIES.items()}


def installed() -> set[str]:
    """Packages that the project names, as they are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *extras["engine"], *extras["trainers"]]
    return {re.split(r"\W", name, maxsplit=1)[0] for name in listed}


def lacks(program: str) -> bool:
    """Whether a package is missing here that it asks for, or a program that it imports."""
    found, left = set(), [program]
    while left:
        own = PACKAGES[left.pop()] - found
        left += [f"{name}.py" for name in own if f"{name}.py" in STUDIES]
        found |= own
    return any(find_spec(HEAVY[name]) is None for name in found & HEAVY.keys())


def start(program: str, *arguments: str) -> int:
    """What it exits with when it is called in its folder's company."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [HOME + program, *arguments])
        try:
            runpy.run_path(str(ROOT / HOME / program), run_name="__main__")
        except SystemExit as left:
            return int(left.code or 0)
    return 0


def test_they_need_what_is_installed_and_what_lies_beside_them_and_say_what_they_are():
    """Of the tests' helpers only the one that a kit for a GPU has, too."""
    known = {name.removesuffix(".py") for name in STUDIES} | installed() | {"odcsim", "odc_engine", "own_process"}
    assert {name: more for name, packages in PACKAGES.items() if (more := packages - known)} == {}
    assert [name for name in STUDIES if not lacks(name) and not load(HOME + name).__doc__] == []


def test_they_start_and_say_what_they_take(capsys):
    started = [name for name, one in STUDIES.items() if '__name__ == "__main__"' in one.text]
    assert 9 <= len(started) <= len(STUDIES) - 8
    for name in started:
        if not lacks(name):
            assert start(name, "--help") == 0, name
            assert re.match(rf"usage: {name}(.*\n)+\noptions:\n", capsys.readouterr().out), name


def test_a_page_is_refreshed(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert [start("refresh.py", str(page)) for _ in range(2)] == [0, 0]
    assert capsys.readouterr().out == "page.md: rewritten\npage.md: holds\n"
    assert page.read_text() == PAGE.replace("\n1\n", "\n2\n")


@pytest.mark.slow
def test_queues_are_run(capsys):
    assert start("queues.py", "--minibatches", "1") == 0
    assert capsys.readouterr().out.count("\n") > 4


def test_checkouts_are_compared_round_by_round():
    rounds = [({"a": 2.0, "b": 1.0}, {"a": 1.0}), ({"a": 4.0, "b": 1.0}, {"a": 4.0, "c": 1.0})]
    rows = [line.split() for line in load("docs/studies/turns.py").table([*rounds, rounds[0]]).splitlines()]
    assert rows[1] == "a 2.000 1.000 0.500 0.500 to 1.000".split()
    assert rows[2:] == [[name, "not", "in", "both", "checkouts"] for name in "bc"]


@pytest.mark.drawn(0)
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_checkout_takes_as_much_memory_as_itself(capsys):
    pytest.importorskip("torch")
    tiny = ["--rounds", "1", "--steps", "1", "--width", "16", "--unit", "64Ki"]
    assert start("turns.py", str(ROOT), str(ROOT), *tiny) == 0
    table = capsys.readouterr().out
    assert len(re.findall(r"^.+, (?:ms|MB|GB/s) +(?:[\d.]+ +){3}[\d.]+ to [\d.]+$", table, re.MULTILINE)) > 9
    assert len(re.findall(r"memory, MB .* 1.000   1.000 to 1.000$", table, re.MULTILINE)) == 2


def test_every_assumption_is_in_the_table_with_a_test_and_none_is_lost_when_it_is_renewed():
    """Where it is not, run `python docs/studies/assumptions.py`."""
    assert assumptions.renewed(INDEX) == INDEX
    found = list(assumptions.assumptions(INDEX))
    assert len({assumption.where for assumption in found}) == len(found) > 40
    assert [assumption.title for assumption in found if not assumption.tests] == []
    assert sum(len(assumption.tests) for assumption in found) == INDEX.count("::test_") > 100


def test_an_assumption_that_is_new_has_no_test_and_one_that_is_gone_no_row():
    page = (assumptions.FOLDER / "memory.md").read_text(encoding="utf-8")
    every = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    old = "| [Old](memory.md#old) | `tests/test_a.py::test_b` |"
    text = f"- [Memory](memory.md)\n\n{assumptions.BEGIN}\n{old}\n{assumptions.END}\n\nb\n"
    assert [(one.title, one.tests) for one in assumptions.assumptions(text)] == [(title, ()) for title in every]
    new = assumptions.table(text)
    before, after = f"- [Memory](memory.md)\n\n{assumptions.BEGIN}\n", f"\n{assumptions.END}\n\nb\n"
    assert assumptions.renewed(text) == f"{before}\n{new}\n{after}"
    assert "Old" not in new
