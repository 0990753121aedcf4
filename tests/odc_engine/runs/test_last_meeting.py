"""A device or the process that starts devices is stopped, stuck or killed where no peer waits for it: the command says
so and ends."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import faults
import pytest
from faults import STOP, VICTIM

from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import EngineError
from odc_engine.runs import launch, run, server, watch

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found through /proc")


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Nobody here has an interpreter to take down on a busy machine, or does so in the time that is measured."""
    monkeypatch.setattr(watch, "END", 4.0)
    monkeypatch.setattr(watch, "GRACE", 0.5)


def halted_after_the_last_meeting(memory: SharedMemory, folder: Path, who: tuple[int, ...], stops: bool) -> None:
    memory.meet(0)
    if memory.rank in who and stops:
        faults.strike(folder, STOP)
    elif memory.rank in who:
        threading.Thread(target=time.sleep, args=(600,)).start()


@pytest.mark.by_default(1)
@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "stuck"])
@pytest.mark.parametrize("who", [(VICTIM,), (0, 1, 2)], ids=["one", "all"])
def test_whoever_does_not_come_to_an_end_after_its_last_meeting_is_named(tmp_path, capfd, who, stops):
    ended = faults.run(halted_after_the_last_meeting, tmp_path / "run", who, stops, timeout=1.0)
    assert ended.code == 1
    assert all(faults.gone(pid) for pid in ended.pids)
    for device, line in zip(who, capfd.readouterr().err.splitlines(), strict=True):
        assert f"device {device} " in line
        assert (f"(pid {ended.pids[device]})" in line) == stops


def server_struck(memory: SharedMemory, folder: Path, number: int) -> None:
    """While everybody is at work, by device 1; which the others would wait for, were it not for the signal."""
    memory.meet(0)
    if memory.rank == VICTIM:
        (folder / "fault").write_text(str(time.time()))
        os.kill(os.getppid(), number)
    time.sleep(0.2)
    memory.meet(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(STOP, marks=pytest.mark.slow)])
def test_a_server_that_is_gone_or_stopped_is_told_of_in_a_line(tmp_path, capfd, number):
    ended = faults.run(server_struck, tmp_path / "run", number, timeout=1.0)
    assert ended.code == 1
    assert all(faults.gone(pid) for pid in ended.pids)
    assert len(capfd.readouterr().err.splitlines()) == 1


def meeting_once(memory: SharedMemory, _folder: Path) -> None:
    memory.meet(0)


@pytest.mark.slow
def test_a_server_stopped_while_devices_start_is_an_error_and_the_next_run_has_another(tmp_path, monkeypatch):
    really = server.fork
    monkeypatch.setattr(server, "fork", lambda starts, limit: really([partial(strike, STOP), *starts], limit))
    with pytest.raises(EngineError):
        launch.run(meeting_once, 2, 1.0, tmp_path)
    monkeypatch.undo()
    assert faults.run(meeting_once, tmp_path / "run").code == 0


def strike(number: int) -> None:
    os.kill(server.pid(), number)
    time.sleep(0.05)


def dead_at_the_very_end(memory: SharedMemory, folder: Path, draft: Path) -> None:
    memory.meet(0)
    if memory.rank == 0:
        draft.write_text("a timeline")
    memory.meet(0)
    if memory.rank == VICTIM:
        faults.strike(folder, signal.SIGKILL)


def test_a_failed_run_leaves_no_timeline(tmp_path, monkeypatch):
    """Device 1 is killed when device 0 has written all of it."""

    def devices(_job, _work, _file, _its_job, draft, _quiet) -> int:
        return faults.run(dead_at_the_very_end, tmp_path / "run", Path(draft)).code

    monkeypatch.setattr(run, "on_devices", devices)
    monkeypatch.setattr(run, "check", lambda *_: None)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "timeline").write_text("another")
    assert run.run(None, None, str(tmp_path / "out" / "timeline"), quiet=True) == 1
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["another"]
