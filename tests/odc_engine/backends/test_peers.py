"""How a device sees that a peer is gone: from many threads at once, and on systems that tell little."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from odc_engine.backends.base import MAIN
from odc_engine.backends.shm import peers
from odc_engine.backends.shm.memory import SharedMemory


def looked(_rank, times):
    """What goes wrong where two threads look at once."""
    raised = []

    def look():
        try:
            for _ in range(times):
                memory.peers.look()
        except BaseException as error:
            raised.append(repr(error))

    memory = SharedMemory(timeout=30.0)
    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.meet(MAIN)
    memory.close()
    return raised


def test_lanes_and_loop_may_look_at_once(pools):
    assert pools(2).run(looked, 3000) == [[], []]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_that_has_ended_is_gone_before_its_parent_asks():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert peers._exists(process.pid)
        process.stdin.close()
        while peers._state(process.pid) not in "ZX":  # the test's own time limit ends it
            pass
        assert not peers._exists(process.pid)
    assert not peers._exists(process.pid)


def test_a_process_that_nobody_here_may_signal_is_there(monkeypatch):
    def refused(_pid, _signal):
        raise PermissionError

    monkeypatch.setattr(peers.os, "kill", refused)
    assert peers._exists(os.getpid())
