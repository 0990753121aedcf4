"""`odc_engine run`, `verify` and `profile` as a user calls them: codes, files, and mistakes that cost no minutes."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from jobs import written
from machine import COUNTS, KINDS, SURVEY, run_on_machine

from odc_engine.cli import main
from odc_engine.measuring import profile
from odc_engine.measuring.profile import legs, measured, partial
from odcsim import profile as profiles
from odcsim import timeline
from odcsim.errors import InputError

UNEQUAL = (2, 1, 0)


def engine(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "odc_engine", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def code_of(args: list[str]) -> int:
    try:
        return main(args)
    except SystemExit as stopped:
        return int(stopped.code or 0)


@pytest.mark.slow
def test_an_emulated_run_tells_of_its_devices_and_leaves_a_timeline(tmp_path):
    schedule, seconds = written(tmp_path, UNEQUAL, (1, 1, 1))
    output = str(tmp_path / "timeline.npz")
    done = engine("run", schedule, "--sync", "on-demand", "--emulate-compute", "--profile", seconds, "-o", output)
    assert (done.returncode, done.stdout) == (0, "")
    pids = dict(re.findall(r"^device (\d) pid (\d+)$", done.stderr, re.MULTILINE))
    assert sorted(pids) == ["0", "1", "2"]
    assert len(done.stderr.splitlines()) == 5  # and one for each minibatch
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    found = timeline.read(output)
    assert (found.about.executor, found.about.fidelity, found.about.emulated) == ("engine", "measured", True)
    assert found.samples.tolist() == [3, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"profile.json", "schedule.jsonl", "timeline.npz"}


@pytest.mark.slow
def test_verify_proves_it(tmp_path):
    schedule, _ = written(tmp_path, UNEQUAL)
    done = engine("verify", schedule, "--sync", "on-demand", "--accumulate", "slots", "--json")
    verdict = json.loads(done.stdout)
    assert verdict["ok"], done.stderr
    assert verdict["max_relative_error"] <= verdict["bound"]


ON_DEMAND = ["--sync", "on-demand"]
REFUSED = [["--sync", "collective"], ["--sync", "deferred"], ["--sync", "ondemand"], []]
REFUSED += [
    [*ON_DEMAND, *words.split()]
    for words in (
        "--backend torch",
        "--emulate-compute",
        "--emulate-compute --profile nowhere",
        "--sharding hybrid --devices-per-node 0",
        "--accumulate slot",
        "-o none/t.npz",
        *(f"--timeout {seconds}" for seconds in ("0", "-1", "nan", "inf", "1w")),
    )
]
REFUSED = [["GOOD", *words] for words in REFUSED] + [[file, *ON_DEMAND] for file in ("nowhere", "empty", "other")]


@pytest.mark.parametrize("command", ["run", "verify"])
@pytest.mark.parametrize("args", REFUSED, ids=" ".join)
def test_mistakes_are_one_line_before_torch_loads(command, args, tmp_path, capsys, monkeypatch):
    if command == "verify" and ("-o" in args or "--emulate-compute" in args):
        return
    good, _ = written(tmp_path, (2, 1))
    (tmp_path / "empty").touch()
    (tmp_path / "other").write_text('{"format": 1}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    before, said = set(tmp_path.iterdir()), []
    output = ["-o", "t.npz"] if command == "run" else []
    for words in (args, ["GOOD", *ON_DEMAND]):  # the second one lacks torch alone
        own = [good if word == "GOOD" else word for word in words]
        assert code_of([command, *own, *(output if "-o" not in own else [])]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        said.append(printed.err)
    assert said[0] != said[1]
    assert set(tmp_path.iterdir()) == before


def test_help_loads_neither_torch_nor_numpy_and_files_no_torch():
    code = "import sys, odc_engine.cli as c; c.build_parser(); print({'torch', 'numpy'} & set(sys.modules))\n"
    code += "import odc_engine.job; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\nFalse\n"


GPUS = {
    "none": (0, (), {}, False),
    "left idle": (8, (), {}, True),
    "of threads": (8, ("--backend", "threads"), {}, True),
    "used": (8, ("--backend", "threads", "--device", "cuda"), {}, False),
    "not asked for": (8, ("--emulate-compute", "--gpu", "a100"), {}, False),
    "told by the first": (8, (), {"RANK": "0"}, True),
    "told by the first alone": (8, (), {"RANK": "1"}, False),
}


@pytest.mark.parametrize(("command", "case"), [*(("run", each) for each in GPUS), ("verify", "left idle")])
def test_who_leaves_gpus_idle_is_told(monkeypatch, tmp_path, capsys, command, case):
    """Before anything starts."""
    count, asked, place, told = GPUS[case]
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr(f"odc_engine.runs.{command}.{command}", lambda *_: 0)
    for name, value in ({"WORLD_SIZE": "4", "MASTER_ADDR": "here"} | place if place else {}).items():
        monkeypatch.setenv(name, value)
    schedule, _ = written(tmp_path, UNEQUAL)
    output = ("-o", str(tmp_path / "timeline.npz")) if command == "run" else ()
    assert code_of([command, schedule, "--sync", "on-demand", *asked, *output]) == 0
    assert capsys.readouterr().err.count("\n") == told


ARGS = ["--devices", "2,3", "--max-tokens", "512", "--quick"]


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(profile, "run", run_on_machine)
    monkeypatch.setattr(profile, "warn_if_busy", lambda: None)


UNMEASURED = [
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


@pytest.mark.parametrize("words", UNMEASURED)
def test_mistakes_in_what_is_measured_are_one_line_before_torch_loads(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(profile, "run", lambda *_, **__: pytest.fail("something was measured"))
    monkeypatch.chdir(tmp_path)
    Path("taken.json.partial").touch()
    if words not in TRIED:
        monkeypatch.setitem(sys.modules, "torch", None)
    said = []
    for args in (words.split(), [] if words not in TRIED else ["--devices", "1"]):  # the other one lacks torch alone
        assert code_of(["profile", "-o", "me.json", *args]) == 2
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
    assert code_of(["profile", *ARGS, "-o", str(output)]) == 0
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
    assert code_of(["profile", *ARGS, "-o", str(tmp_path / "me.json")]) == 0
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
    assert code_of(["profile", *ARGS, "-o", str(output)]) == code
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
