"""Processes that share memory: who is stopped, what memory there is, and files without a name."""

import contextlib
import errno
import gc
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist
from transports import lacking, lost, refused

from odc_engine.backends import patience
from odc_engine.backends.aside import Aside
from odc_engine.backends.base import MAIN
from odc_engine.backends.collectives import agreed, watched
from odc_engine.backends.shm import files, peers
from odc_engine.backends.shm import memory as shm
from odc_engine.backends.shm.memory import SharedMemory
from odcsim.errors import InputError

SHORT = 0.5  # seconds for which a device is seen to stand still


@contextlib.contextmanager
def patient_memory():
    """Seconds are cut down, all but those of a silent device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "HALTED", SHORT)
        patch.setattr(patience, "LOOK_UP", SHORT / 5)
        memory = SharedMemory(timeout=600.0)
        memory.allocate(64)
        yield memory
        dist.barrier()
        memory.close()


WAITS = {
    "meeting": lambda memory: memory.meet(MAIN),
    "lock": lambda memory: memory.lock(1, 0, 8).__enter__(),
    "collective": lambda memory: watched(dist.barrier(async_op=True), memory),
    "call": lambda memory: Aside().bounded(lambda: time.sleep(5), memory, "a call"),
}


def stands_still(rank, where):
    """Device 1 is stopped for good, with a lock in hand."""
    with patient_memory() as memory:
        if rank == 1:
            assert memory.try_lock(1, 0, 8)
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.01)  # the process may run on a little before the signal arrives
            memory.unlock(1, 0, 8)
            return dist.barrier() if where == "collective" else None
        start = time.monotonic()
        try:
            return lost(lambda: WAITS[where](memory)), time.monotonic() - start
        finally:
            os.kill(memory.peers.pids[1], signal.SIGCONT)


@pytest.mark.parametrize("where", WAITS)
def test_a_stopped_device_is_named_long_before_the_timeout(pools, where):
    devices, seconds = pools(2).run(stands_still, where)[0]
    assert devices == [1]
    assert SHORT <= seconds < SHORT + 5


def comes_late(rank):
    """Longer than a stopped one would have, and stopped itself now and then, as under a debugger or a scheduler."""
    held_up = f"kill -STOP {os.getpid()}; sleep {SHORT / 2}; kill -CONT {os.getpid()}"
    with patient_memory() as memory:
        memory.meet(MAIN)
        for _ in range(3 if rank == 1 else 0):
            subprocess.run(["sh", "-c", held_up], check=True)
            time.sleep(SHORT / 2)
        memory.meet(MAIN)


def test_who_stands_still_now_and_then_is_waited_for(pools):
    assert pools(2).run(comes_late) == [None, None]


def looked(_rank, times):
    memory = SharedMemory(timeout=30.0)
    with ThreadPoolExecutor(2) as lane_and_loop:
        for done in [lane_and_loop.submit(lambda: [memory.peers.look() for _ in range(times)]) for _ in range(2)]:
            done.result()
    memory.meet(MAIN)
    memory.close()


def test_lanes_and_loop_may_look_at_once(pools):
    assert pools(2).run(looked, 2000) == [None, None]


def test_a_process_is_gone_when_it_has_ended_and_not_before(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert peers._exists(process.pid)
        process.stdin.close()
        while peers._state(process.pid) not in "ZX":  # nobody has asked for its end
            time.sleep(0.01)
        assert not peers._exists(process.pid)
    assert not peers._exists(process.pid)

    def not_ours(_pid, _signal):
        raise PermissionError

    monkeypatch.setattr(peers.os, "kill", not_ours)
    assert peers._exists(os.getpid())


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def without_memory(rank, why):
    """What kind of error each device has where device 0 finds too little memory, or 1 gets none or is elsewhere."""
    lacks = {"none is given": (os, "posix_fallocate", no_space), "another machine": (files, "here", lambda: "another"),
             "pids of another kind": (os, "getpid", lambda: 2**30)}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as end:
        if rank == 1 and why in lacks:
            patch.setattr(*lacks[why])

        def made():
            memory = SharedMemory(timeout=30.0)
            end.callback(memory.close)
            memory.allocate(1 << (46 if why == "too much" else 20))

        found = refused(made)
        dist.barrier()
        return found


OWN, OTHERS = "InputError", "PeerLost"


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("too much", [OWN, OTHERS, OTHERS]),
        ("none is given", [OTHERS, OWN, OTHERS]),
        ("another machine", [OWN] * 3),
        ("pids of another kind", [OWN] * 3),
    ],
)
def test_where_memory_cannot_be_shared_nobody_goes_on(pools, why, told):
    assert pools(3).run(without_memory, why) == told


def refused_by_one(rank):
    group = dist.new_group([1, 2])
    if rank == 0:
        return None

    def attempt():
        if rank == 2:
            raise InputError("no room", fix="make some")

    return (lost if rank == 1 else refused)(lambda: agreed(group, attempt))


def test_what_one_is_refused_is_told_to_all_of_its_group_with_its_rank(pools):
    assert pools(3).run(refused_by_one) == [None, [2], OWN]


def kept_after_the_end(rank, keep):
    memory = SharedMemory(timeout=30.0)
    memory.allocate(64)
    mapped = memory._files[rank].memory
    gradient = memory.view(rank)[8:16] if keep else None
    memory.close()
    if keep:
        gradient.fill_(3)
        gc.collect()
    return None if mapped.closed else bytes(mapped[7:17])


def test_a_gradient_that_outlives_its_arena_keeps_its_memory(pools):
    """Whoever wrote to it would write to memory that is somebody else's by then."""
    assert pools(1).run(kept_after_the_end, True) == [bytes([0, *[3] * 8, 0])]
    assert pools(1).run(kept_after_the_end, False) == [None]


def test_a_file_that_cannot_be_made_leaves_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with lacking("memfd"), pytest.raises(InputError), contextlib.ExitStack() as made:
        files._create(4 << 20, made)
    assert not list(tmp_path.iterdir())


NEW = ("max", "current", "active_file {}\ninactive_file {}\n")
OLD = ("limit_in_bytes", "usage_in_bytes",
       "active_file 9\ninactive_file 9\ntotal_active_file {}\ntotal_inactive_file {}\n")  # fmt: skip
NO_LIMIT = 9223372036854771712  # of version 1
V2 = "30 23 0:26 {} /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = "35 31 0:32 {} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
OTHER = (
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n32 31 0:29 / /sys/fs/cgroup/cpu - cgroup cgroup cpu"
)
STEP = "0::/slurm/job/step"
# What /proc tells, the version's files, and of groups: the limit, what is used, and cached files of both kinds.
GROUPS = {
    "a container": ("0::/", V2.format("/"), NEW, {"": (1000, 700, 30, 5)}, 335),
    "without a limit": ("0::/", V2.format("/"), NEW, {"": ("max", 700, 30, 5)}, math.inf),
    "a step": (STEP, V2.format("/"), NEW, {"slurm/job/step": (1000, 700, 0, 0)}, 300),
    "a job": (STEP, V2.format("/"), NEW,
              {"slurm/job/step": (1000, 100, 0, 0), "slurm/job": (1000, 950, 20, 0), "slurm": ("max", 5000, 0, 0)}, 70),
    "of a namespace": ("0::/../step", V2.format("/"), NEW, {"": (1000, 900, 0, 0)}, 100),
    "shown from above": ("0::/docker/id/step", V2.format("/docker"), NEW, {"id/step": (1000, 600, 0, 0)}, 400),
    "version 1": ("4:memory:/job\n0::/", f"{OTHER}\n{V1.format('/')}", OLD, {"job": (1000, 700, 30, 5)}, 335),
    "version 1 above": ("4:cpu,memory:/job/step\n1:cpuset:/else\n0::/x", f"{V1.format('/')}\n{OTHER}", OLD,
                        {"job/step": (NO_LIMIT, 700, 0, 0), "job": (1000, 999, 0, 0), "": (NO_LIMIT, 5000, 0, 0)}, 1),
    "version 1 of docker": ("4:memory:/docker/id", V1.format("/docker/id"), OLD, {"": (1000, 300, 0, 0)}, 700),
    "no groups": ("", "22 1 8:1 / / rw - ext4 /dev/root rw", NEW, {}, math.inf),
    "no proc": (None, "", NEW, {}, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("where", GROUPS)
def test_the_least_limit_of_a_process_s_groups_counts(tmp_path, where):
    told, mounts, (limit, used, stat), groups, free = GROUPS[where]
    if told is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(told)
        (tmp_path / "proc/self/mountinfo").write_text(mounts + "\n")
    for name, (most, taken, *cached) in groups.items():
        folder = tmp_path / ("sys/fs/cgroup" if stat is NEW[2] else "sys/fs/cgroup/memory") / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"memory.{limit}").write_text(f"{most}\n")
        (folder / f"memory.{used}").write_text(f"{taken}\n")
        (folder / "memory.stat").write_text("anon 600\nfile 100\n" + stat.format(*cached))
    assert shm._group_free(str(tmp_path)) == free


@pytest.mark.parametrize("wrong", [0, 1])
def test_what_is_opened_is_closed_also_where_it_is_another_file(wrong, tmp_path):
    (path := tmp_path / "arena").write_bytes(bytes(64))
    mine = files._Told("here", os.getpid(), 0, str(path), path.stat().st_ino + wrong, 64)
    before = len([*Path("/proc/self/fd").iterdir()])
    with contextlib.suppress(InputError), contextlib.ExitStack() as opened:
        files._open(1, mine, mine, opened).memory.close()
        assert not wrong
    assert len([*Path("/proc/self/fd").iterdir()]) == before
