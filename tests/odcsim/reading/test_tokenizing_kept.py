"""What is kept of counts is whole or not there, however many processes keep and recall it, and never in the way."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scripts import ROOT

from odcsim.reading.bad import Fault
from odcsim.reading.tokenizing import kept
from odcsim.reading.tokenizing.counting import RowTokens

COUNTED = RowTokens(np.arange(20_000), np.arange(20_000) // 2, (Fault(0, "has no messages", "mend the row"),))
KEEPS = """
import sys, numpy as np
from odcsim.reading.tokenizing import kept
counted = np.arange(20_000), np.arange(20_000) // 2, [(0, "has no messages", "mend the row")]
while True:
    kept.keep("it", counted)
    print(flush=True)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def is_whole(found):
    return all(np.array_equal(one, other) for one, other in zip(found, COUNTED, strict=True))


def test_processes_that_keep_one_thing_at_once_leave_it_whole():
    """Two keep it again and again until they are killed, and it is recalled all the while."""
    commands = [[sys.executable, "-c", KEEPS]] * 2
    keeping = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for command in commands]
    try:
        for process in keeping:
            process.stdout.readline()
        assert all(is_whole(kept.recall("it")) for _ in range(100))
    finally:
        for process in keeping:
            process.kill()
            process.communicate()
    assert is_whole(kept.recall("it"))


def test_threads_that_keep_one_thing_at_once_leave_it_whole_and_nothing_else():
    threads = [threading.Thread(target=kept.keep, args=("it", COUNTED)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_whole(kept.recall("it"))
    assert [path.name for path in kept.folder().iterdir()] == ["it.npz"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_what_is_torn_was_never_there(share):
    kept.keep("it", COUNTED)
    [path] = kept.folder().iterdir()
    path.write_bytes((whole := path.read_bytes())[: int(share * len(whole))])
    assert kept.recall("it") is None
    kept.keep("it", COUNTED)
    assert is_whole(kept.recall("it"))


def test_who_has_no_home_counts_anew(monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", none)
    kept.keep("it", COUNTED)
    assert kept.recall("it") is None


@pytest.mark.parametrize("lies", ["a file", "a link to nowhere"])
def test_where_nothing_can_be_kept_nothing_is_said(tmp_path, lies):
    there = tmp_path / "odcsim"
    there.write_text("mine") if lies == "a file" else there.symlink_to(tmp_path / "nowhere" / "else")
    kept.keep("it", COUNTED)
    assert kept.recall("it") is None
    assert [path.name for path in tmp_path.iterdir()] == ["odcsim"]
