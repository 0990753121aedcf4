"""`odc_engine doctor --gpu-selftest` where there is no GPU, and whatever a probe does to its process."""

import json
import os
import signal
import time

import pytest

from odc_engine.cli import main
from odc_engine.doctor.probes import selftest
from odc_engine.doctor.probes.base import ABSENT, FAILED, OK, PROBES, Absent, Answer, Probe
from odc_engine.doctor.probes.driver import first_gpu
from odc_engine.doctor.probes.selftest import Result, ask, status


def gpu() -> bool:
    try:
        return bool(first_gpu())
    except Absent:
        return False


no_gpu = pytest.mark.skipif(gpu(), reason="there is a GPU here")

BODIES = {
    "good": 'return Answer("ok", "fine", {"rate": 1.5})',
    "absent": 'raise Absent("nothing to ask")',
    "wrong": 'raise ValueError("first\\n  second")',
    "exits": 'print("nvshmem: no transport", flush=True); os._exit(255)',
    "crashes": "os.kill(os.getpid(), 11)",
    "hangs": "print(sleeper().pid, flush=True); time.sleep(60)",
    "leaves": 'return Answer("ok", str(sleeper().pid))',
}
MODULE = """
import os, subprocess, sys, time
from odc_engine.doctor.probes.base import Absent, Answer

def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

def probe():
    {body}
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The answer of a probe with this body."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def asked(name: str, seconds: float = 30.0) -> Answer:
        (tmp_path / f"probe_{name}.py").write_text(MODULE.format(body=BODIES[name]))
        return ask(Probe(f"probe_{name}", "", seconds))

    return asked


@no_gpu
def test_without_a_gpu_every_probe_says_so_in_a_line(capsys):
    assert main(["doctor", "--gpu-selftest"]) == selftest.NO_GPU == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["--", probe.name] for probe in PROBES]
    assert all("no GPU: " in line for line in lines)


@no_gpu
def test_json_tells_the_same(capsys, monkeypatch):
    monkeypatch.setattr(selftest, "PROBES", PROBES[:2])
    assert selftest.selftest(True, PROBES[:2]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["gpu"]) == (1, None)
    assert [each["name"] for each in printed["probes"]] == ["versions", "kernels"]
    for each in printed["probes"]:
        assert set(each) == {"name", "asks", "seconds", "status", "found", "data"}
        assert each["status"] == ABSENT


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("good", Answer(OK, "fine", {"rate": 1.5})),
        ("absent", Answer(ABSENT, "nothing to ask")),
    ],
)
def test_what_a_probe_answers_is_told(asked, name, expected):
    assert asked(name) == expected


def test_what_a_failed_probe_has_said_is_told_with_its_answer(asked):
    answer = asked("wrong")
    assert (answer.status, answer.found) == (FAILED, "ValueError: first second")
    assert selftest._words(Result(PROBES[0], answer, 0.0))[-2:] == ["    ValueError: first", "      second"]


def test_a_library_that_ends_the_process_is_a_failure_with_its_last_words(asked):
    answer = asked("exits")
    assert answer.status == FAILED
    assert answer.found == "ended with exit status 255 and no answer; its last words: nvshmem: no transport"


def test_a_probe_that_crashes_is_a_failure(asked):
    assert asked("crashes").found == "ended with exit status -11 and no answer; its last words: nothing"


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] not in "ZX"


def gone(pid: int) -> bool:
    for _ in range(100):
        if not runs(pid):
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


def test_a_probe_that_hangs_is_ended_with_everything_it_started(asked):
    start = time.monotonic()
    answer = asked("hangs", 1.5)
    assert time.monotonic() - start < 20
    assert answer.found.startswith("no answer within 1.5 s; its last words: ")
    assert gone(int(answer.found.rpartition(" ")[2]))


def test_nothing_of_a_probe_is_left_behind(asked):
    assert gone(int(asked("leaves").found))


@pytest.mark.parametrize(
    ("found", "gpu", "code"),
    [
        ([OK, OK], "a GPU", 0),
        ([OK, ABSENT], "a GPU", 0),
        ([OK, FAILED, ABSENT], "a GPU", 1),
        ([ABSENT, ABSENT], None, 3),
        ([ABSENT, FAILED], None, 1),
    ],
)
def test_the_exit_status_tells_what_was_found(found, gpu, code):
    assert status([Result(PROBES[0], Answer(each, ""), 0.0) for each in found], gpu) == code


def test_a_single_probe_runs_by_itself(capsys):
    from odc_engine.doctor.probes.__main__ import main as one

    assert one([]) == 2
    usage = capsys.readouterr().err
    assert all(probe.module in usage and probe.asks in usage for probe in PROBES)
    assert one(["odc_engine.doctor.probes.versions"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] in (OK, ABSENT)
