"""The commands of `make validate-gpu`, and tests of a GPU that pass, fail, crash and hang in processes of their own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import own_process
import pytest
import validate_gpu
from scripts import ROOT

CONFTEST = """
from own_process import pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_runtest_protocol
"""
TESTS = """
import ctypes, os, subprocess, sys, time
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.limit(30)]

def test_good(record_property):
    record_property("rate", 1.5)

def test_absent():
    pytest.skip("nothing to ask")

@pytest.mark.parametrize("number", [1, 2])
def test_wrong(number):
    print("nvshmem: no transport")
    assert number == 2

def test_exits():
    os._exit(7)

def test_crashes():
    os.kill(os.getpid(), 11)

@pytest.mark.limit(2)
def test_hangs():
    print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
    ctypes.PyDLL(None).sleep(60)  # keeps the interpreter to itself, as a library's call may

@pytest.fixture
def gpu():
    raise RuntimeError

def test_of_a_gpu_alone(gpu):
    pass
"""


@pytest.fixture
def run(tmp_path):
    """`run(*words)` runs these tests and returns what pytest printed, and the record."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_made_up.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")

    def called(*words):
        command = [sys.executable, "-m", "pytest", "-c", "pytest.ini", "-p", "no:cacheprovider", "-p", "no:dash", "-ra"]
        env = os.environ | {"PYTHONPATH": f"{ROOT / 'tests/helpers'}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run([*command, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        lines = own_process.recorded(tmp_path / "home")
        return done.stdout, {name.partition("::")[2]: line for name, line in lines.items()}

    return called


def gone(pid):
    """Within five seconds, and not as a zombie."""
    for _ in range(250):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
def test_tests_that_fail_or_hang_stop_no_other_and_all_are_recorded(run):
    printed, record = run("--cpu", "--home", "home")
    assert "4 failed, 2 passed, 2 skipped" in printed
    assert {name: line.get("why", "").partition("\n")[0] for name, line in record.items()} == {
        "test_good": "",
        "test_absent": "nothing to ask",
        "test_wrong[1]": "assert 1 == 2",
        "test_wrong[2]": "",
        "test_exits": "ended with 7, and without a report",
        "test_crashes": "ended with -11, and without a report",
        "test_hangs": f"no end within {2 * own_process.PACE:g} s",
        "test_of_a_gpu_alone": "a CPU cannot stand in for a GPU here",
    }
    outcomes = [line["outcome"] for line in record.values()]
    assert [outcomes.count(each) for each in ("failed", "passed", "skipped")] == [4, 2, 2]
    assert record["test_good"]["figures"] == {"rate": 1.5}
    assert "nvshmem: no transport" in record["test_wrong[1]"]["said"]
    assert "in test_crashes" in record["test_crashes"]["said"]
    hung = record["test_hangs"]
    assert "in test_hangs" in hung["said"]
    assert gone(int(next(line for line in hung["said"].splitlines() if line.isdecimal())))


@pytest.mark.skipif(own_process.gpus() > 0, reason="there is a GPU here")
def test_without_a_gpu_all_are_skipped_and_none_is_started(run):
    printed, record = run("--home", "home")
    assert "8 skipped" in printed
    assert {line["why"] for line in record.values()} == {own_process.NO_GPU}


def test_a_line_that_was_cut_off_takes_no_other_along_and_what_has_passed_is_not_run_again(tmp_path):
    lines = [{"test": f"tests/gpu/x.py::{name}", "outcome": name} for name in ("failed", "skipped", "passed")]
    again = [{**line, "test": "tests/gpu/x.py::failed"} for line in lines[1:]]
    assert own_process.recorded(tmp_path) == {}
    (tmp_path / own_process.RECORD).write_text("\n".join([*map(json.dumps, [*again, *lines]), '{"test": "b", "out']))
    assert {line["test"]: line for line in lines} == own_process.recorded(tmp_path)
    words = validate_gpu.command(1, tmp_path, False)
    assert [word for word in words if word.startswith("--deselect")] == ["--deselect=tests/gpu/x.py::passed"]


def files(*rungs):
    return [[f"test_gpu_{name}.py" for name in validate_gpu.RUNGS[rung]] for rung in rungs]


@pytest.mark.slow
def test_a_rung_takes_at_most_nine_minutes_whatever_hangs():
    code = f"""
import json, pytest, sys
class Seen:
    def pytest_collection_finish(self, session):
        print("seen", json.dumps({{item.nodeid: item.get_closest_marker("limit").args[0] for item in session.items}}))
sys.exit(pytest.main(["-q", "--collect-only", "-m", "gpu", "--strict-markers", {str(ROOT / "tests/gpu")!r}], [Seen()]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    collected = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("seen "))[5:])
    every = {path.name for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert every == {name for names in files(*validate_gpu.RUNGS) for name in names}
    for names in files(*validate_gpu.RUNGS):
        limits = [limit for test, limit in collected.items() if test.partition("::")[0].rpartition("/")[2] in names]
        assert limits
        assert sum(limits) + len(limits) * own_process.LAST_WORDS <= 540


@pytest.fixture
def commands(monkeypatch):
    """What is started on a machine with a GPU, and what it is to end with."""
    started, codes = [], []

    def run(command, check):  # noqa: ARG001
        started.append([Path(word).name for word in command if word.endswith(".py")])
        return subprocess.CompletedProcess(command, codes.pop(0) if codes else 0)

    monkeypatch.setattr(validate_gpu, "gpus", lambda: 1)
    monkeypatch.setattr(validate_gpu.subprocess, "run", run)
    return started, codes


def test_the_command_runs_the_rungs_that_it_is_told(commands, monkeypatch, tmp_path, capsys):
    assert validate_gpu.main(["--out", str(tmp_path)]) == 0
    assert validate_gpu.main(["3", "--out", str(tmp_path)]) == 0
    monkeypatch.setattr(validate_gpu, "gpus", lambda: 8)
    assert validate_gpu.main(["--out", str(tmp_path)]) == 0
    assert commands[0] == [*files(1, 2, 3), *files(3), *files(1, 2, 3, 4)]
    for codes, status in (([5, 5, 0, 0], 0), ([0, 1, 0, 0], 1)):  # a test that fails is told and stops no rung
        commands[1].extend(codes)
        assert validate_gpu.main(["--out", str(tmp_path)]) == status
        assert not commands[1]
    monkeypatch.setattr(validate_gpu, "gpus", lambda: 0)
    assert validate_gpu.main(["--out", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err == "validate-gpu: no GPU: NVIDIA's driver sees none\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("rung", validate_gpu.RUNGS)
def test_a_cpu_stands_in_from_any_folder(rung, tmp_path):
    """Every test that does not need the GPU itself passes, and is in the record."""
    command = [sys.executable, ROOT / "docs/studies/validate_gpu.py", f"{rung}", "--cpu", "--out", "home"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    outcomes = [line["outcome"] for line in own_process.recorded(tmp_path / "home").values()]
    assert set(outcomes) <= {"passed", "skipped"}
    assert "passed" in outcomes or rung == max(validate_gpu.RUNGS)  # which needs several GPUs
