"""`odc_engine profile` as a user calls it: lines, exit codes, and mistakes that cost no minutes."""

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
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


REFUSED = {
    "one device": (["--devices", "1"], "1 devices have nobody to exchange with; --devices 2 or more"),
    "a slip": (["--devices", "2,20000"], "20000 devices, each a process of this machine; at most 256"),
    "twice": (["--devices", "2,2"], "a number of devices is named twice"),
    "no number": (["--devices", "two"], "'two' is not a list of whole numbers"),
    "few tokens": (["--max-tokens", "100"], "--max-tokens 100 leaves too little to vary; at least 256"),
    "model": (["--model", "tinny"], "did you mean 'tiny'?"),
    "experts": (["--model", "gpt-oss-20b"], "model 'gpt-oss-20b' has mixture of experts"),
    "nvshmem": (["--backend", "nvshmem"], "backend 'nvshmem'; one of shm, threads, cuda_ipc, torch"),
    "threads": (["--backend", "threads", "--device", "cuda"], "backend 'threads cuda'; one of shm, threads, cuda_ipc"),
    "backend": (["--backend", "nccl"], "invalid choice: 'nccl'"),
    "device": (["--device", "cuda"], "--device cuda with backend shm; --backend threads or torch"),
    "no folder": (["-o", "nowhere/me.json"], "nowhere/me.json: its folder does not exist; make nowhere first"),
    "folder": (["-o", "."], ".: is a folder; name a file to write"),
    "not writable": (["-o", "/proc/me.json"], "/proc/me.json.partial: cannot be made (No such file or directory)"),
    "taken": (["-o", "taken.json"], "taken.json.partial: cannot be made (File exists)"),
}


@pytest.mark.parametrize(("args", "message"), REFUSED.values(), ids=REFUSED)
def test_mistakes_are_one_line_and_measure_nothing(args, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(profile, "run", lambda *_, **__: pytest.fail("something was measured"))
    monkeypatch.chdir(tmp_path)
    Path("taken.json.partial").touch()
    assert code_of(["-o", "me.json", *args]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert re.match(r"odc_engine( profile)?: error: ", line)
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["taken.json.partial"]


def test_arguments_are_refused_before_torch_loads(monkeypatch, tmp_path, capsys):
    """All but what only trying tells: whether the folder of an unfinished call can be made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    for args, message in list(REFUSED.values())[:-2]:
        assert code_of(["-o", "me.json", *args]) == 2
        assert message in capsys.readouterr().err
    for args, message in ((["--devices", "1"], "nobody to exchange with"), (["--bytes", "7"], "7 bytes are not")):
        assert main(["bandwidth", *args]) == 2
        assert message in capsys.readouterr().err
    assert code_of(["-o", "me.json"]) == 2
    assert "torch is not installed" in capsys.readouterr().err


def test_torchrun_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="profile starts its devices itself; start it without torchrun"):
        measured(SURVEY, tmp_path / "me.json")


@pytest.mark.usefixtures("machine")
def test_the_command_tells_the_fit_and_each_piece(tmp_path, capsys):
    output = tmp_path / "me.json"
    assert code_of([*ARGS, "-o", str(output)]) == 0
    printed = capsys.readouterr()
    lines, found = printed.out.splitlines(), profiles.read(output)
    fitted = ["backward", "backward kept", "embed", "forward", "forward kept", "head"]
    assert [line.partition(":")[0] for line in lines[: len(fitted)]] == fitted
    assert "beside others compute takes 1.25 times what it takes alone: in the fit already" in lines
    assert "push on 2 devices: 1.70 times as long beside compute" in lines
    own = "settle 1 ms, publish 2 ms, meeting 0.06 ms; 612 us for each of 5 units"
    assert lines[-4] == f"on-demand's own on 2 devices, once per minibatch: {own}"
    assert lines[-3].startswith("on-demand's own on 3 devices")
    assert lines[-5] == "valid for samples up to 512 tokens, microbatches up to 512"
    assert lines[-2] == "beside the catalogue: nothing, since it has GPUs and these seconds are a processor's"
    assert lines[-1] == f"{output}: {found.origin}"
    told = printed.err.splitlines()
    names = [leg.name for leg in legs(replace(SURVEY, devices=COUNTS))]
    assert [line.split()[1] for line in told] == names
    assert re.fullmatch(r"profile: compute-0 done, 1 of \d+, about \d+ s left", told[0])
    assert told[-1].endswith(f"done, {len(names)} of {len(names)}, about 0 s left")


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


@pytest.mark.usefixtures("machine")
def test_a_failing_run_keeps_what_is_measured(tmp_path, capsys, monkeypatch):
    calls = iter([0, 0])
    monkeypatch.setattr(profile, "run", lambda *a, **k: run_on_machine(*a, **k) or next(calls, 1))
    assert code_of([*ARGS, "-o", str(tmp_path / "me.json")]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        "odc_engine: error: a run on 2 devices failed, see above; "
        "what is measured so far is kept: give the same command again"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["me.json.partial"]
    assert len(list(partial(tmp_path / "me.json").iterdir())) == 2


@pytest.mark.usefixtures("machine")
def test_an_interrupt_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    stopped = iter([False, False])

    def interrupted(*args, **kwargs):
        if next(stopped, True):
            raise KeyboardInterrupt
        return run_on_machine(*args, **kwargs)

    monkeypatch.setattr(profile, "run", interrupted)
    output = tmp_path / "me.json"
    assert code_of([*ARGS, "-o", str(output)]) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[2:] == [
        f"odc_engine: stopped; what is measured is kept, the same command goes on ({partial(output)})"
    ]
    assert len(list(partial(output).iterdir())) == 2


REAL = ("profile", "--model", "nano", "--quick", "--max-tokens", "256", "-o")


def devices_of(pid: int) -> list[int]:
    """Every process that descends from this one."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(each for child in found for each in devices_of(child))]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_a_real_call_is_stopped_and_goes_on(tmp_path):
    output, shared = tmp_path / "me.json", set(Path("/dev/shm").iterdir())
    command = [sys.executable, "-m", "odc_engine", *REAL, str(output)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any("compute-0 done, 1 of " in line for line in process.stderr)  # after a word on the load, maybe
    time.sleep(1.0)  # into the second leg
    started = devices_of(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("odc_engine: stopped; what is measured is kept, the same command goes on")
    assert "Traceback" not in err
    assert started
    deadline = time.monotonic() + 10  # servers notice a moment later that nobody needs them
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert set(Path("/dev/shm").iterdir()) == shared
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "compute-0" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["me.json"]
    found = profiles.read(output)
    assert done.stdout.splitlines()[-1] == f"{output}: {found.origin}"
    assert {(t.kind, t.devices) for t in found.timings} == {
        (kind, 2) for kind in (*KINDS, "meeting", "settle", "overhead", "optimizer", "publish")
    }
    # On a busy machine a coefficient of so small a model may vanish in noise, but not all of a kind.
    kinds = (found.forward, found.backward, found.head, found.embed)
    assert all(p.constant + p.linear + p.quadratic + p.sample > 0 for p in kinds)
    assert found.interference > 0
    assert (found.model, found.longest, found.most_tokens) == ("nano", 256, 256)
