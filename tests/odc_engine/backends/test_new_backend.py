"""A backend is added by one row: as CONTRIBUTING.md says it, and without any file of the engine."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import file_of
from scripts import ROOT

from odc_engine import backends
from odc_engine.backends.backend import BOTH, Processes
from odc_engine.cli import main
from odc_engine.doctor import abilities
from odcsim import schedule, timeline
from odcsim.errors import InputError
from odcsim.recipe import Recipe

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a backend")[2]
MODULE = textwrap.dedent(re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)[0])


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the engine in which the page's steps are done: a file, and a word in another."""
    folder = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "odc_engine", folder / "odc_engine", ignore=shutil.ignore_patterns("__pycache__"))
    home = folder / "odc_engine/backends"
    (home / "mine").mkdir()
    (home / "mine/__init__.py").write_text(MODULE)
    text = (home / "__init__.py").read_text()
    text = text.replace("from odc_engine.backends import ", "from odc_engine.backends import mine, ", 1)
    (home / "__init__.py").write_text(text.replace("shm.ROW,", "shm.ROW, mine.ROW,", 1))
    return folder


def called(house, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "odc_engine", *arguments],
        cwd=house,
        env=os.environ | {"PYTHONPATH": f"{house}{os.pathsep}{ROOT}", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_the_page_s_row_is_all_that_it_takes_to_run(house):
    schedule.write(file_of((2, 1)), house / "s.jsonl")
    done = called(house, "run", "s.jsonl", "--sync", "on-demand", "--backend", "mine", "-o", "t.npz")
    assert done.returncode == 0, done.stderr
    assert timeline.read(house / "t.npz").about.hardware.endswith("; backend mine, locked")


def test_and_to_be_offered_and_known(house):
    assert "--backend {shm,mine,threads," in called(house, "profile", "--help").stdout
    told = called(house, "doctor").stdout.partition("backend:")[2]
    assert re.search(r"mine +processes, every sync, under another name$", told, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Toy(Processes):
    """Processes that share memory, and note who has asked for it."""

    folder: str = ""

    def memory(self, host, device=None):  # noqa: ARG002
        Path(self.folder, str(host.rank)).touch()
        return host


@pytest.fixture
def toy(monkeypatch, tmp_path):
    row = Toy(name="toy", says="a toy", profiled=BOTH, folder=str(tmp_path))
    monkeypatch.setattr(backends, "ROWS", (*backends.ROWS, row))
    return row


def test_gradients_are_verified_through_it(toy, tmp_path):
    """By the command, in processes that know of it by the job alone. It fails where gradients differ."""
    schedule.write(file_of((2, 1)), tmp_path / "s.jsonl")
    assert main(["verify", str(tmp_path / "s.jsonl"), "--sync", "on-demand", "--backend", "toy"]) == 0
    assert [(Path(toy.folder) / str(rank)).exists() for rank in range(2)] == [True, True]


@pytest.mark.parametrize("command", ["run", "verify", "profile"])
@pytest.mark.usefixtures("toy")
def test_it_is_a_choice_of_the_command_line(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert ",nvshmem,toy}" in capsys.readouterr().out


@pytest.mark.usefixtures("toy")
def test_it_is_advised_where_another_cannot():
    with pytest.raises(InputError, match="did you mean 'toy'"):
        backends.chosen("toyy")
    with pytest.raises(
        InputError,
        match=r"has no hybrid sharding; use --backend shm, threads, tcp, cuda_ipc, nvshmem, toy$",
    ):
        backends.check(backends.chosen("torch"), Recipe("collective", sharding="hybrid"))
    assert backends.profiled()[-2:] == ["toy", "torch"]  # which says less


def test_a_question_that_it_leaves_out_is_answered_as_on_a_processor(toy):
    with pytest.raises(InputError, match="--device cuda with backend toy; --backend threads or torch"):
        backends.chosen("toy", "cuda")
    [finding] = [f for f in abilities.examine() if f.name == "toy"]
    assert (finding.area, finding.found, finding.ok) == ("backend", "a toy", True)
    assert "toy" not in backends.measured()  # it names no rival
    assert toy.one_sided
