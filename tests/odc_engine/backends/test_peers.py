"""How a device sees that a peer is gone: from many threads at once, and on systems that tell little."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from odc_engine.backends.base import MAIN
from odc_engine.backends.collectives import agreed
from odc_engine.backends.shm import peers
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import PeerLost
from odcsim.errors import InputError


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


PART = (1, 2)  # of three devices


def of_a_part(rank, work):
    group = dist.new_group(list(PART))
    if rank not in PART:
        return None
    try:
        work(rank, group)
    except PeerLost as lost:
        return lost.devices, str(lost)
    return [], ""


def one_is_late(rank, group):
    memory = SharedMemory(group, timeout=0.5)
    if rank == PART[0]:
        memory.meet(MAIN)
    else:
        time.sleep(1.0)


def ended_for(lost):
    def work(rank, group):
        memory = SharedMemory(group, timeout=20.0)
        if rank == PART[0]:
            memory.fail(lost)
        else:
            memory.meet(MAIN)

    return work


def refused_by_one(rank, group):
    def attempt():
        if rank == PART[1]:
            raise InputError("no room", fix="make some")

    try:
        agreed(group, attempt)
    except InputError:
        return


def alone_ended(rank):
    return [of_a_part(rank, ended_for(PeerLost([lost], "died"))) for lost in (2, 0)]


def test_a_part_of_all_names_ranks_among_all(pools):
    """As memory over a network does, so that both name the same process."""
    waited = pools(3).run(of_a_part, one_is_late)[1]
    assert waited[0] == [2]
    assert waited[1].startswith("device 2 did not synchronize")
    assert pools(3).run(of_a_part, refused_by_one)[1] == ([2], "device 2 failed: its own error says why")


def test_who_ends_for_a_device_outside_says_so_itself(pools):
    found = pools(3).run(alone_ended)[2]
    assert found == [([1], "device 1 gave up waiting for this one"), ([1], "device 1 failed: its own error says why")]


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
