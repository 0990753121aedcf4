"""`odc_engine profile` as a user calls it: lines, exit codes, and mistakes that cost no minutes."""

import re
import signal
import subprocess
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from machine import COUNTS, KINDS, SURVEY, run_on_machine

from odc_engine.cli import main
from odc_engine.measuring import profile
from odc_engine.measuring.profile import legs, measured, partial
from odcsim import profile as profiles
from odcsim.errors import InputError

ARGS = ["--devices", "2,3", "--max-tokens", "512", "--quick"]


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(profile, "run", run_on_machine)
    monkeypatch.setattr(profile, "warn_if_busy", lambda: None)


def code_of(args: list[str]) -> int:
    try:
        return main(["profile", *args])
    except SystemExit as stopped:
        return int(stopped.code or 0)


REFUSED = [
    "--devices 1",
    "--devices 2,20000",
    "--devices 2,2",
    "--devices two",
    "--max-tokens 100",
    "--model tinny",
    "--model gpt-oss-20b",
    "--backend nvshmem",
    "--backend threads --device cuda",
    "--backend nccl",
    "--device cuda",
    "-o nowhere/me.json",
    "-o .",
    "-o /proc/me.json",
    "-o taken.json",
]
TRIED = ("-o /proc/me.json", "-o taken.json")  # what only trying tells


@pytest.mark.parametrize("words", REFUSED)
def test_mistakes_are_one_line_before_torch_loads(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(profile, "run", lambda *_, **__: pytest.fail("something was measured"))
    monkeypatch.chdir(tmp_path)
    Path("taken.json.partial").touch()
    if words not in TRIED:
        monkeypatch.setitem(sys.modules, "torch", None)
    said = []
    for args in (words.split(), [] if words not in TRIED else ["--devices", "1"]):  # the other one lacks torch alone
        assert code_of(["-o", "me.json", *args]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        said.append(printed.err)
    assert said[0] != said[1]
    assert [path.name for path in tmp_path.iterdir()] == ["taken.json.partial"]


def test_torchrun_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError):
        measured(SURVEY, tmp_path / "me.json")


@pytest.mark.usefixtures("machine")
def test_the_command_tells_the_fit_and_each_piece(tmp_path, capsys):
    output = tmp_path / "me.json"
    assert code_of([*ARGS, "-o", str(output)]) == 0
    printed = capsys.readouterr()
    fitted = ["backward", "backward kept", "embed", "forward", "forward kept", "head"]
    assert [line.partition(":")[0] for line in printed.out.splitlines()[: len(fitted)]] == fitted
    assert printed.out.splitlines()[-1] == f"{output}: {profiles.read(output).origin}"
    names = [leg.name for leg in legs(replace(SURVEY, devices=COUNTS))]
    assert [line.split()[1] for line in printed.err.splitlines()] == names


@pytest.mark.usefixtures("machine")
def test_a_fit_that_does_not_explain_is_said(tmp_path, capsys, monkeypatch):
    """From some size on everything takes three times as long, as where a cache is full."""
    before = profile.measure

    def busy(plan, leg):
        found = before(plan, leg)
        slow = tuple(replace(r, seconds=r.seconds * (3 if r.tokens > 300 else 1)) for r in found.compute)
        return found if leg.name == "alone" else replace(found, compute=slow)

    monkeypatch.setattr(profile, "measure", busy)
    assert code_of([*ARGS, "-o", str(tmp_path / "me.json")]) == 0
    printed = capsys.readouterr()
    unexplained = [line for line in printed.out.splitlines() if line.startswith("NOT EXPLAINED: ")]
    assert unexplained
    assert re.search(r"^odc_engine: the fit does not explain \d+ measurements$", printed.err, re.MULTILINE)
    assert "not explained by the fit" in printed.out.splitlines()[-1]


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("fails", "code"), [(lambda: 1, 1), (interrupted, 130)])
def test_a_run_that_fails_or_is_interrupted_keeps_what_is_measured(tmp_path, capsys, monkeypatch, fails, code):
    calls = iter([0, 0])

    def run(*args, **kwargs):
        return run_on_machine(*args, **kwargs) if next(calls, None) == 0 else fails()

    monkeypatch.setattr(profile, "run", run)
    output = tmp_path / "me.json"
    assert code_of([*ARGS, "-o", str(output)]) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 3)  # a line for each that is measured, and the error's
    assert [path.name for path in tmp_path.iterdir()] == ["me.json.partial"]
    assert len(list(partial(output).iterdir())) == 2


REAL = ("profile", "--model", "nano", "--quick", "--max-tokens", "256", "-o")


def devices_of(pid: int) -> list[int]:
    """Every process that descends from this one."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(each for child in found for each in devices_of(child))]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_a_real_call_is_stopped_and_goes_on(tmp_path):
    output, shared = tmp_path / "me.json", set(Path("/dev/shm").glob("[!s]*"))
    command = [sys.executable, "-m", "odc_engine", *REAL, str(output)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any("compute-0 done, 1 of " in line for line in process.stderr)  # after a word on the load, maybe
    time.sleep(1.0)  # into the second leg
    started = devices_of(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert started
    deadline = time.monotonic() + 10  # servers notice a moment later that nobody needs them
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert set(Path("/dev/shm").glob("[!s]*")) == shared  # without semaphores, which go at once
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "compute-0" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["me.json"]
    found = profiles.read(output)
    assert {(t.kind, t.devices) for t in found.timings} == {
        (kind, 2) for kind in (*KINDS, "meeting", "settle", "overhead", "optimizer", "publish")
    }
    # On a busy machine a coefficient of so small a model may vanish in noise, but not all of a kind.
    assert all(any(astuple(p)) for p in (found.forward, found.backward, found.head, found.embed))
    assert found.interference > 0
    assert (found.model, found.longest, found.most_tokens) == ("nano", 256, 256)
