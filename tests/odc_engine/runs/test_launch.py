"""Processes for devices: who may reach them, and that none outlives the command, however that ends."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest
import torch
from jobs import file_of, written

from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import EngineError
from odc_engine.runs import launch
from odcsim import schedule

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")
UP = 90.0  # seconds for a command to be at work, on a loaded machine
SECONDS = 20.0  # for a command to end, most of which is the interpreter itself


@contextlib.contextmanager
def at_work(folder: Path, reached=lambda _pid, told: "minibatch 0 done" in told):
    """A long emulated run with a session and a temporary folder of its own, once it has done a minibatch."""
    (folder / "tmp").mkdir()
    path, profile = written(folder, (2, 1, 2))
    schedule.write(file_of(*[(2, 1, 2)] * 5000), path)
    command = [sys.executable, "-m", "odc_engine", "run", path, "--sync", "on-demand", "--emulate-compute"]
    command += ["--profile", profile, "-o", str(folder / "timeline.npz")]
    # torch keeps what it compiles for longer than a run, in the temporary folder unless told otherwise.
    env = os.environ | {"TMPDIR": str(folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=env)
    try:
        assert within(UP, lambda: reached(process.pid, log.read_text()) or process.poll() is not None), log.read_text()
        assert process.poll() is None, log.read_text()
        yield process, log
    finally:
        for pid in session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(UP)


def within(seconds: float, reached) -> bool:
    deadline = time.monotonic() + seconds
    while not (there := reached()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return there


def session(leader: int) -> list[int]:
    """Living processes of a session: the command, its devices, and Python's own helpers."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == leader and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def stopped_and_killed(process, log):
    (stopped,) = re.findall(r"device 2 pid (\d+)", log.read_text())
    os.kill(int(stopped), signal.SIGSTOP)
    process.kill()


ENDS = {
    # What a terminal does with an interrupt from the keyboard.
    "interrupted": (lambda process, _: os.killpg(process.pid, signal.SIGINT), 130),
    "told to end": (lambda process, _: process.terminate(), 128 + signal.SIGTERM),
    "hung up": (lambda process, _: process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP),
    "killed": (lambda process, _: process.kill(), -signal.SIGKILL),
    "killed over a stopped device": (stopped_and_killed, -signal.SIGKILL),
}


# A device that is killed a moment after another one may still name it.
USUAL = r"device \d pid|minibatch \d+ done|odc_engine: error: device \d: device \d died"


@linux
@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_nothing_outlives_the_command(tmp_path, end):
    send, code = ENDS[end]
    with at_work(tmp_path) as (process, log):
        assert len(session(process.pid)) >= 4
        send(process, log)
        assert process.wait(SECONDS) == code
        assert within(SECONDS, lambda: not session(process.pid))
    told = [line for line in log.read_text().splitlines() if not re.match(USUAL, line)]
    assert len(told) == (end == "interrupted")
    assert not (tmp_path / "timeline.npz").exists()
    assert not list((tmp_path / "tmp").iterdir())


@linux
@pytest.mark.slow
@pytest.mark.parametrize("end", ["interrupted", "killed"])
@pytest.mark.parametrize("processes", [3, 4, 6])
def test_nothing_outlives_a_command_that_ends_while_devices_start(tmp_path, end, processes):
    """With 3 there is no device yet, but what will fork them; with 6 all are there and look for each other.

    What is said is not looked at: a device that is cut off while it is told its task shows Python's own traceback.
    """
    with at_work(tmp_path, reached=lambda pid, _told: len(session(pid)) >= processes) as (process, log):
        assert len(session(process.pid)) > 1  # else there would be nothing to outlive it; some end by themselves
        ENDS[end][0](process, log)
        assert process.wait(SECONDS) in (130, -signal.SIGINT, -signal.SIGKILL)
        assert within(SECONDS, lambda: not session(process.pid))


def listening(_memory: SharedMemory, folder: Path) -> None:
    """Addresses that this process listens on, as the kernel writes them."""
    own = {str(path.readlink()) for path in Path("/proc/self/fd").glob("*") if path.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.append(fields[1].partition(":")[0])
    (folder / f"listens{_memory.rank}").write_text(" ".join(found))


@linux
def test_devices_listen_on_this_machine_alone(tmp_path):
    assert faults.run(listening, tmp_path / "run").code == 0
    for device in range(faults.DEVICES):
        found = (tmp_path / "run" / f"listens{device}").read_text().split()
        assert found
        assert set(found) == {"0100007F"}  # 127.0.0.1


def test_where_no_anonymous_file_exists_devices_meet_in_a_folder_that_goes(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(launch.tempfile, "tempdir", str(tmp_path))
    with launch._rendezvous() as place:
        assert Path(place.path).parent.parent == tmp_path
        assert place.address == f"file://{place.path}"
        Path(place.path).touch()
    assert not list(tmp_path.iterdir())


def test_torchrun_with_other_processes_or_on_several_machines_is_refused(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for devices in (3, 4):
        with pytest.raises(launch.InputError):
            launch.run(print, devices, 1.0)


def without_an_end(memory, folder):
    """A device fails whose group is not taken down for a long time."""

    def late():
        time.sleep(30)
        (folder / f"late{memory.rank}").touch()

    launch.GRACE, torch.distributed.destroy_process_group = 0.05, late
    raise EngineError("a reason")


def test_a_group_that_is_not_taken_down_is_left_behind(tmp_path):
    ended = faults.run(without_an_end, tmp_path / "run", devices=2)
    assert ended.code == 1
    assert [len(lines) for lines in ended.lines] == [1, 1]
    assert not list((tmp_path / "run").glob("late*"))
