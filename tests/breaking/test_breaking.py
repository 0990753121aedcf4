"""A share of what `make break` does: changed inputs through every command, faults in the engine. Each run draws others
where BREAKING_SEED says so; what breaks is told with the command that repeats it."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import breaks
import mutations
import pytest
import seeds
from scripts import ROOT

from odcsim.cli import build_parser

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of memory are Linux's here")
SEED = os.environ.get("BREAKING_SEED", "0")


@pytest.mark.slow
@pytest.mark.parametrize(("program", "size"), [("fuzz", ["--inputs", "1500"]), ("inject", ["--faults", "12"])])
def test_nothing_breaks(program, size):
    command = [sys.executable, str(ROOT / "tests" / "breaking" / f"{program}.py"), *size, "--seed", SEED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_every_break_that_is_listed_is_one_line_of_its_file():
    listed = breaks.listed()
    assert len({(one.file, one.line) for one, _ in listed}) == len(listed) >= 30
    for one, test in listed:
        lines = (ROOT / one.file).read_text().splitlines()
        lines[lines.index(one.line)] = one.changed
        ast.parse("\n".join(lines))
        assert one.changed != one.line
        assert (ROOT / test).is_file()


@pytest.mark.slow
def test_drawn_breaks_are_lines_that_can_be_run_and_are_kept_until_these_go():
    drawn = breaks.drawn(0, 80)
    assert len(drawn) == len(set(drawn)) == 80
    assert {one.room for one in drawn} == set(breaks.ROOMS)
    for one in drawn:
        lines = (ROOT / one.file).read_text().splitlines()
        lines[breaks.place(one)] = one.changed
        ast.parse("\n".join(lines))
        assert breaks.tests(one)
    gone = drawn[3]._replace(line="gone")
    kept = breaks.again([one._asdict() for one in (*drawn[:3], gone)], 0)
    assert kept[:3] == drawn[:3]
    assert kept[3].room == gone.room
    assert kept[3] not in drawn[:4]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["odcsim", "odc_engine"])
def test_the_first_breaks_of_each_package_are_red(package):
    for one, test in [row for row in breaks.listed() if row[0].file.startswith(package)][:2]:
        assert breaks.attempt(one, [test])[0], one


@pytest.mark.slow
def test_every_seed_is_read_whole_and_its_changes_are_drawn_alike(tmp_path):
    seeds.write(tmp_path)
    names = sorted({case.seed for case in seeds.CASES if case.seed})
    for name in names:
        data = (tmp_path / name).read_bytes()
        drawn = [[mutations.changed(data, name, Random(number)) for number in range(20)] for _ in range(2)]
        assert drawn[0] == drawn[1]
        assert sum(other != data for other in drawn[0]) > 10


def test_every_command_that_reads_is_tried():
    [commands] = [action.choices for action in build_parser()._actions if hasattr(action, "_choices_actions")]
    assert set(commands) - {case.argv[0] for case in seeds.CASES} == {"demo", "explore", "completion"}
