"""`odc_engine run` and `verify` as a user calls them: exit codes, and the file that odcsim reads."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import written

from odc_engine.cli import main
from odcsim import timeline

COUNTS = (2, 1, 0)


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
    schedule, profile = written(tmp_path, COUNTS, (1, 1, 1))
    output = str(tmp_path / "timeline.npz")
    done = engine("run", schedule, "--sync", "on-demand", "--emulate-compute", "--profile", profile, "-o", output)
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
    schedule, _ = written(tmp_path, COUNTS)
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
    schedule, _ = written(tmp_path, COUNTS)
    output = ("-o", str(tmp_path / "timeline.npz")) if command == "run" else ()
    assert code_of([command, schedule, "--sync", "on-demand", *asked, *output]) == 0
    assert capsys.readouterr().err.count("\n") == told
