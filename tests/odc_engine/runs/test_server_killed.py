"""The process that forks devices killed at any moment of a start: they go with it, and the next run of the same process
is as good as the first."""

import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.util
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cut_off import DEVICES, FIRST, cut_off, killed_in_the_middle, living, meeting

from odc_engine.runs import launch, server
from odcsim.errors import InputError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")


@pytest.mark.slow
def test_devices_cut_off_while_they_start_are_ended_with_the_run(tmp_path):
    assert living(cut_off(tmp_path / "tasks", longer=60.0)) == []
    assert launch.run(meeting, DEVICES, FIRST) == 0


@pytest.mark.slow
def test_devices_that_outlive_their_server_leave_all_to_those_who_live(tmp_path, monkeypatch):
    """Where the system has no handles of processes, nobody ends them, and they do so themselves."""
    monkeypatch.delattr(os, "pidfd_open")
    pids = cut_off(tmp_path / "tasks", longer=0.3)
    until = time.monotonic() + 10.0
    while living(pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert living(pids) == []
    assert len(list((tmp_path / "tasks").glob("* was read"))) == len(pids)  # else there was nothing to see
    assert Path(multiprocessing.util.get_temp_dir()).exists()
    assert launch.run(meeting, DEVICES, FIRST) == 0


ADOPTING = """
import ctypes, os, sys
from pathlib import Path
import cut_off

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as who keeps a session does
    del os.pidfd_open
    for pid in cut_off.cut_off(Path(sys.argv[1]), longer=0.3):
        os.waitpid(pid, 0)
    print("lives")
"""


@pytest.mark.slow
def test_devices_that_outlive_their_server_do_not_end_who_adopts_them(tmp_path):
    path = tmp_path / "adopting.py"
    path.write_text(ADOPTING)
    command, env = [sys.executable, path, tmp_path / "tasks"], os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "lives\n"), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_run_after_a_killed_server_is_as_good_as_the_first(seed):
    assert launch.run(meeting, DEVICES, FIRST) == 0
    began = time.monotonic()
    assert launch.run(meeting, DEVICES, FIRST) == 0
    killer = threading.Timer(random.Random(seed).uniform(0, 0.8) * (time.monotonic() - began), server.kill)
    killer.start()
    killed_in_the_middle()  # or not, on a machine that is faster now
    killer.join()
    assert launch.run(meeting, DEVICES, FIRST) == 0


@pytest.mark.slow
def test_a_run_after_temporary_folders_were_cleared_is_as_good_as_the_first():
    for clear in (
        lambda: Path(multiprocessing.forkserver._forkserver._forkserver_address).unlink(),
        lambda: shutil.rmtree(multiprocessing.util.get_temp_dir()),
        lambda: None,
    ):
        assert launch.run(meeting, DEVICES, FIRST) == 0
        clear()


def test_a_folder_whose_path_no_socket_can_have_is_refused(tmp_path, monkeypatch):
    server.kill()
    folder = tmp_path / ("long" * 30)
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "tempdir", str(folder))
    with pytest.raises(InputError):
        launch.run(meeting, DEVICES, FIRST)
