"""`odc_engine run` and `verify` as a user calls them: exit codes, lines, and the file that odcsim reads."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import written

from odc_engine.cli import main
from odcsim import timeline

COUNTS = (4, 1, 2, 0)


def engine(*args: str, before: tuple[str, ...] = ("-m",)) -> subprocess.CompletedProcess:
    command = [sys.executable, *before, "odc_engine", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """One run for many looks at it."""
    folder = tmp_path_factory.mktemp("emulated")
    schedule, profile = written(folder, COUNTS, (1, 1, 1, 1))
    output = str(folder / "timeline.npz")
    args = ("--sync", "on-demand", "--emulate-compute", "--profile", profile, "-o", output)
    return engine("run", schedule, *args), output


def test_devices_and_progress_are_told_on_stderr(emulated):
    done, _ = emulated
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    pids = dict(re.findall(r"^device (\d) pid (\d+)$", done.stderr, re.MULTILINE))
    assert sorted(pids) == ["0", "1", "2", "3"]
    assert len(set(pids.values())) == 4
    assert [line for line in lines if line.startswith("minibatch")] == ["minibatch 0 done", "minibatch 1 done"]
    assert len(lines) == 6


def test_no_process_outlives_the_run(emulated):
    for pid in re.findall(r"pid (\d+)", emulated[0].stderr):
        assert not Path(f"/proc/{pid}").exists()


def test_the_timeline_is_one_that_odcsim_reads(emulated):
    found = timeline.read(emulated[1])
    assert (found.about.executor, found.about.fidelity, found.about.emulated) == ("engine", "measured", True)
    assert found.samples.tolist() == [7, 4]
    assert sorted(path.name for path in Path(emulated[1]).parent.iterdir()) == [
        "profile.json",
        "schedule.jsonl",
        "timeline.npz",
    ]


def test_odcsim_reports_it(emulated, tmp_path):
    from odcsim.cli import main as odcsim

    assert odcsim(["report", emulated[1], "--html", str(tmp_path / "report.html")]) in (0, None)
    assert (tmp_path / "report.html").stat().st_size > 1000


@pytest.mark.slow
def test_verify_proves_it(tmp_path):
    schedule, _ = written(tmp_path, COUNTS)
    done = engine("verify", schedule, "--sync", "on-demand", "--accumulate", "slots", "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ok"]
    assert verdict["max_relative_error"] <= verdict["bound"]


@pytest.mark.slow
def test_torchrun_launches_it_too(tmp_path):
    schedule, _ = written(tmp_path, (2, 1))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    output = tmp_path / "timeline.npz"
    done = engine("run", schedule, "--sync", "on-demand", "-o", str(output), before=torchrun)
    assert done.returncode == 0, done.stderr
    assert timeline.read(output).about.devices == 2


BAD_TIMES = ("0", "-1", "nan", "inf", "1w")
REFUSED = {
    "unequal counts": (["--sync", "collective"], "minibatch 0: devices run different numbers of microbatches"),
    "unequal counts, deferred": (["--sync", "deferred"], "minibatch 0: devices run different numbers"),
    "backend": (["--sync", "on-demand", "--backend", "torch"], "backend torch has collectives only"),
    "seconds": (["--sync", "on-demand", "--emulate-compute"], "--emulate-compute needs step times"),
    "profile": (["--sync", "on-demand", "--emulate-compute", "--profile", "nowhere"], "nowhere: no such file"),
    "sync": (["--sync", "ondemand"], "argument --sync: invalid choice: 'ondemand'"),
    "no sync": ([], "the following arguments are required: --sync"),
    **{f"timeout {t}": (["--sync", "on-demand", "--timeout", t], f"'{t}' is not a number of s") for t in BAD_TIMES},
    "no node": (
        ["--sync", "on-demand", "--sharding", "hybrid", "--devices-per-node", "0"],
        "'0' is not a whole number",
    ),
    "accumulate": (["--sync", "on-demand", "--accumulate", "slot"], "argument --accumulate: invalid choice: 'slot'"),
}


@pytest.mark.parametrize(("args", "message"), REFUSED.values(), ids=REFUSED)
def test_mistakes_are_one_line_and_start_nothing(args, message, tmp_path, capsys, monkeypatch):
    from odc_engine.runs import launch

    monkeypatch.setattr(launch, "_spawn", lambda *_: pytest.fail("processes were started"))
    schedule, _ = written(tmp_path, COUNTS)
    output = tmp_path / "timeline.npz"
    assert code_of(["run", schedule, *args, "-o", str(output)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert re.match(r"odc_engine( run)?: error: ", line)
    assert message in line
    assert not output.exists()


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no such file"), ("", "not a JSON object"), ('{"format": 1}\n', "not a schedule")]
)
def test_what_is_no_schedule_is_refused(text, message, tmp_path, capsys):
    path = tmp_path / "schedule.jsonl"
    if text is not None:
        path.write_text(text)
    assert code_of(["verify", str(path), "--sync", "on-demand"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"odc_engine: error: {path}")
    assert message in line


def test_without_torch_a_run_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert code_of(["verify", written(tmp_path, (1, 1))[0], "--sync", "on-demand"]) == 2
    assert "torch is not installed; pip install 'odcsim[engine]'" in capsys.readouterr().err


BAD = {
    "schedule": (["s.jsonl"], "s.jsonl: no such file"),
    "profile": (["GOOD", "--profile", "p.json", "--emulate-compute"], "p.json: no such file"),
    "counts": (["GOOD", "--sync", "collective"], "minibatch 0"),
    "sync": (["GOOD", "--backend", "torch"], "backend torch has collectives only"),
    "output": (["GOOD", "-o", "none/t.npz"], "none"),
}


@pytest.mark.parametrize(("args", "problem"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_torch_loads(monkeypatch, tmp_path, capsys, args, problem):
    good, _ = written(tmp_path, (1, 2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    args = [good if a == "GOOD" else a for a in args]
    more = [a for pair in (("--sync", "on-demand"), ("-o", "t.npz")) if pair[0] not in args for a in pair]
    assert code_of(["run", *args, *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_help_loads_neither_torch_nor_numpy():
    code = "import sys, odc_engine.cli as c; c.build_parser(); print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_what_reads_files_does_not_load_torch():
    code = "import sys, odc_engine.cli, odc_engine.job; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def code_of(args: list[str]) -> int:
    try:
        return main(args)
    except SystemExit as stopped:
        return int(stopped.code or 0)


IDLE = "odc_engine: GPUs are here (8), and backend shm computes on processors; --backend cuda_ipc computes on GPUs\n"
GPUS = {
    "none": (0, (), {}, ""),
    "left idle": (8, (), {}, IDLE),
    "of threads": (8, ("--backend", "threads"), {}, IDLE.replace("shm", "threads")),
    "used": (8, ("--backend", "threads", "--device", "cuda"), {}, ""),
    "not asked for": (8, ("--emulate-compute", "--gpu", "a100"), {}, ""),
    "told by the first": (8, (), {"RANK": "0"}, IDLE),
    "told by the first alone": (8, (), {"RANK": "1"}, ""),
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
    assert capsys.readouterr().err == told
