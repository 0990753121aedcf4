"""Processes that share memory: locks exclude, meetings meet, and nobody waits for what cannot come."""

import contextlib
import errno
import gc
import math
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from odc_engine.backends import patience
from odc_engine.backends.aside import Aside
from odc_engine.backends.base import COMM, MAIN
from odc_engine.backends.collectives import watched
from odc_engine.backends.shm import files, futex
from odc_engine.backends.shm import memory as shm
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import PeerLost
from odcsim.errors import InputError

DEVICES = 3
ROUNDS = 300
SHORT = 0.5  # seconds of timeout


@contextlib.contextmanager
def memory_of(nbytes: int, timeout: float = 30.0):
    memory = SharedMemory(timeout=timeout)
    memory.allocate(nbytes)
    try:
        yield memory
    finally:
        dist.barrier()
        memory.close()


def counted(rank, switched_off=()):
    """Everybody adds one to a number of each device, in steps between which others could come."""
    with without(*switched_off), memory_of(64) as memory:
        for turn in range(ROUNDS):
            number = memory.view(turn % DEVICES)[8:16].view(torch.int64)
            with memory.lock(turn % DEVICES, 8, 16):
                seen = int(number)
                if turn % 10 == rank:
                    time.sleep(1e-4)
                number.fill_(seen + 1)
        memory.meet(MAIN)
        return [int(memory.view(device)[8:16].view(torch.int64)) for device in range(DEVICES)]


def unknown_call(_pid):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@contextlib.contextmanager
def without(*names):
    """As on a system that lacks these, in this process."""
    places = {"memfd": (os, "memfd_create"), "pidfd": (os, "pidfd_open"), "futex": (futex, "_libc")}
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            if name == "kernel 5.3":
                patch.setattr(os, "pidfd_open", unknown_call)
                continue
            module, attribute = places[name]
            if name == "futex":
                patch.setattr(module, attribute, None)
            else:
                patch.delattr(module, attribute)
        yield


SYSTEMS = {"linux": (), "an old linux": ("kernel 5.3",), "elsewhere": ("memfd", "pidfd", "futex")}


@pytest.mark.parametrize("switched_off", SYSTEMS.values(), ids=SYSTEMS)
def test_locks_exclude_and_meetings_order(pools, switched_off):
    before = set(Path(tempfile.gettempdir()).glob("odc-*"))
    found = pools(DEVICES).run(counted, switched_off)
    assert found == [[ROUNDS] * DEVICES] * DEVICES
    left = set(Path(tempfile.gettempdir()).glob("odc-*")) - before
    assert not [path for path in left if path.is_file()]


def without_a_lock(rank):
    with memory_of(64) as memory:
        taken = memory.try_lock(0, 0, 8) if rank == 0 else None
        memory.meet(MAIN)
        same, other, others = (memory.try_lock(*where) for where in ((0, 4, 12), (0, 8, 16), (1, 0, 8)))
        memory.meet(MAIN)
        return taken, same, other, others


def test_a_lock_holds_its_own_bytes_only(pools):
    first, second = pools(2).run(without_a_lock)
    # The holder's own tries succeed: within a process it is a lane that excludes.
    assert first[0] is True
    assert second[1] is False
    assert sorted([first[2], second[2]]) == [False, True]
    assert sorted([first[3], second[3]]) == [False, True]


def late(rank, room, delay):
    with memory_of(64) as memory:
        memory.meet(MAIN)
        if rank == 1:
            time.sleep(delay)
        came = time.monotonic()
        memory.meet(room)
        return came, time.monotonic()


@pytest.mark.parametrize("room", [MAIN, COMM])
def test_nobody_leaves_a_meeting_before_the_last_has_come(pools, room):
    found = pools(DEVICES).run(late, room, 0.1)
    last = max(came for came, _ in found)
    assert all(left >= last for _, left in found)


def apart(rank):
    """A lane's meetings go on while a training loop waits in its own."""
    with memory_of(64) as memory:
        waits = threading.Thread(target=memory.meet, args=(MAIN,))
        if rank == 0:
            waits.start()
        for _ in range(5):
            memory.meet(COMM)
        alone = waits.is_alive()
        memory.meet(COMM)
        if rank == 0:
            waits.join(10)
        else:
            memory.meet(MAIN)
        return alone, waits.is_alive()


def test_rooms_are_independent(pools):
    assert pools(2).run(apart) == [(True, False), (False, False)]


def silent(rank, where, timeout):
    """Device 1 neither comes nor lets go, for a while."""
    with memory_of(64, timeout) as memory:
        if rank == 1:
            assert memory.try_lock(1, 0, 8)
        dist.barrier()
        if rank == 1:
            time.sleep(3 * timeout)
            memory.unlock(1, 0, 8)
            return "", 0.0
        start = time.monotonic()
        try:
            if where == "meeting":
                memory.meet(MAIN)
            else:
                with memory.lock(1, 0, 8):
                    pass
        except PeerLost as lost:
            return str(lost), time.monotonic() - start
        return "", 0.0


@pytest.mark.parametrize("where", ["meeting", "lock"])
def test_a_device_that_runs_but_does_not_come_is_named_after_the_timeout(pools, where):
    found = pools(2).run(silent, where, SHORT)
    message, seconds = found[0]
    expected = "did not synchronize within" if where == "meeting" else "held a lock on device 1's bytes 0 to 8 for"
    assert f"device 1 {expected} {SHORT:g} s" in message
    assert message.endswith("wait longer with --timeout, or timeout= of OnDemand")
    assert SHORT <= seconds < SHORT + 1


def stands_still(rank, where):
    """Device 1 is stopped for good, and 0 is patient: seconds are cut down, all but those of a silent device."""
    with memory_of(64, 600.0) as memory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "HALTED", SHORT)
        patch.setattr(patience, "LOOK_UP", SHORT / 5)
        if rank == 1:
            assert memory.try_lock(1, 0, 8)
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.01)  # the process may run on a little before the signal arrives
            memory.unlock(1, 0, 8)
            if where == "collective":
                dist.barrier()
            return "", 0.0
        start = time.monotonic()
        try:
            WAITS[where](memory)
        except PeerLost as lost:
            return str(lost), time.monotonic() - start
        finally:
            os.kill(memory.peers.pids[1], signal.SIGCONT)
        return "", 0.0


def held(memory):
    with memory.lock(1, 0, 8):
        pass


WAITS = {
    "meeting": lambda memory: memory.meet(MAIN),
    "lock": held,
    "collective": lambda memory: watched(dist.barrier(async_op=True), memory),
    "call": lambda memory: Aside().bounded(lambda: time.sleep(5), memory, "a call"),
}


@pytest.mark.parametrize("where", WAITS)
def test_a_device_that_is_stopped_is_named_long_before_the_timeout(pools, where):
    message, seconds = pools(2).run(stands_still, where)[0]
    assert re.fullmatch(rf"device 1 .* {SHORT:g} s: stopped \(pid \d+\)", message)
    assert SHORT <= seconds < SHORT + 2


HELD_UP = "kill -STOP {pid}; sleep {seconds}; kill -CONT {pid}"


def comes_late(rank, seconds):
    """Longer than a stopped one would have, and stopped itself now and then, as under a debugger or a scheduler."""
    with memory_of(64, 600.0) as memory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "HALTED", SHORT)
        patch.setattr(patience, "LOOK_UP", SHORT / 5)
        memory.meet(MAIN)
        if rank == 1:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                subprocess.run(["sh", "-c", HELD_UP.format(pid=os.getpid(), seconds=SHORT / 2)], check=True)
                time.sleep(SHORT / 2)
        memory.meet(MAIN)
        return True


def test_a_device_that_lives_is_waited_for_though_it_stands_still_now_and_then(pools):
    assert pools(2).run(comes_late, 3 * SHORT) == [True, True]


def refused(rank, nbytes, unlike=False, failing=None):
    memory = SharedMemory(timeout=30.0)
    with pytest.MonkeyPatch.context() as patch:
        if rank == failing:
            patch.setattr(os, "posix_fallocate", no_space)
        return why_not(memory, nbytes * (1 + rank) if unlike else nbytes)


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def why_not(memory: SharedMemory, nbytes: int) -> str:
    try:
        memory.allocate(nbytes)
    except (InputError, PeerLost) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dist.barrier()
        memory.close()
    return ""


def test_arenas_that_memory_cannot_hold_are_refused_before_any_is_made(pools):
    first, second = pools(2).run(refused, 1 << 46)
    assert first.startswith("InputError: arenas for all devices need 140737.5 GB of shared memory and ")
    assert first.endswith(" GB are free; use fewer devices, a smaller model, or --accumulate locked")
    assert second == "PeerLost: device 0 failed: its own error says why"


def test_a_device_that_gets_no_memory_says_so_and_the_others_go_no_further(pools):
    found = pools(DEVICES).run(refused, 1 << 20, False, 1)
    way_out = "use fewer devices, a smaller model, or --accumulate locked"
    assert found[1] == f"InputError: no shared memory for 1.05 MB (No space left on device); {way_out}"
    assert found[0] == found[2] == "PeerLost: device 1 failed: its own error says why"


def test_arenas_of_different_sizes_are_refused(pools):
    found = pools(2).run(refused, 4096, True)
    assert "device 1 shares 8192 bytes and this one 4096" in found[0]
    assert "device 0 shares 4096 bytes and this one 8192" in found[1]


def elsewhere(rank, what):
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            changes = {"machine": ("here", lambda: "another"), "pids": ("os.getpid", lambda: 2**30)}
            name, value = changes[what]
            patch.setattr(f"odc_engine.backends.shm.files.{name}", value)
        try:
            SharedMemory().close()
        except (InputError, PeerLost) as error:
            return str(error)
        return ""


def test_devices_that_cannot_share_memory_are_told_why(pools):
    found = pools(2).run(elsewhere, "machine")
    assert found[0] == "device 1 is on another machine; share memory on one machine only"
    found = pools(2).run(elsewhere, "pids")
    assert found[0].startswith("memory of device 1 cannot be opened (No such file or directory)")


def left_over(_rank):
    """Open files of this process that ten memories leave which were made and given back, once one has been.

    What tests before have dropped may still be closed meanwhile.
    """
    counts = []
    for times in (1, 10):
        for _ in range(times):
            with memory_of(1 << 16) as memory:
                memory.meet(MAIN)
        gc.collect()
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    return counts[1] - counts[0]


def test_memory_given_back_leaves_no_file_open(pools):
    assert max(pools(2).run(left_over)) <= 0


def kept_after_the_end(rank, keep):
    memory = SharedMemory(timeout=30.0)
    memory.allocate(64)
    mapped = memory._files[rank].memory
    gradient = memory.view(rank)[8:16] if keep else None
    memory.meet(MAIN)
    memory.close()
    if mapped.closed:
        return "closed"
    gradient.fill_(3)
    return bytes(mapped[7:17])


def test_a_gradient_that_outlives_its_arena_keeps_its_memory(pools):
    """Whoever wrote to it would write to memory that is somebody else's by then."""
    assert pools(1).run(kept_after_the_end, True) == [bytes([0, *[3] * 8, 0])]
    assert pools(1).run(kept_after_the_end, False) == ["closed"]


NEW = ("max", "current", "active_file {}\ninactive_file {}\n")
OLD = (
    "limit_in_bytes",
    "usage_in_bytes",
    "active_file 9\ninactive_file 9\ntotal_active_file {}\ntotal_inactive_file {}\n",
)
NO_LIMIT = 9223372036854771712  # of version 1
V2, V1 = (
    "30 23 0:26 {} /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
    "35 31 0:32 {} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
)
HYBRID = (
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n32 31 0:29 / /sys/fs/cgroup/cpu - cgroup cgroup cpu"
)
# What /proc tells, the version's files, and of groups: the limit, what is used, and cached files of both kinds.
GROUPS = {
    "a container": ("0::/", V2.format("/"), NEW, {"": (1000, 700, 30, 5)}, 335),
    "without a limit": ("0::/", V2.format("/"), NEW, {"": ("max", 700, 30, 5)}, math.inf),
    "a step": ("0::/slurm/job/step", V2.format("/"), NEW, {"slurm/job/step": (1000, 700, 0, 0)}, 300),
    "a job": (
        "0::/slurm/job/step",
        V2.format("/"),
        NEW,
        {"slurm/job/step": (1000, 100, 0, 0), "slurm/job": (1000, 950, 20, 0), "slurm": ("max", 5000, 0, 0)},
        70,
    ),
    "a job alone": ("0::/slurm/job/step", V2.format("/"), NEW, {"slurm/job": (1000, 950, 20, 0)}, 70),
    "of a namespace": ("0::/../step", V2.format("/"), NEW, {"": (1000, 900, 0, 0)}, 100),
    "shown from a container": ("0::/docker/id", V2.format("/docker/id"), NEW, {"": (1000, 800, 0, 0)}, 200),
    "shown from above": ("0::/docker/id/step", V2.format("/docker"), NEW, {"id/step": (1000, 600, 0, 0)}, 400),
    "version 1": ("4:memory:/job\n0::/", f"{HYBRID}\n{V1.format('/')}", OLD, {"job": (1000, 700, 30, 5)}, 335),
    "version 1 above": (
        "4:cpu,memory:/job/step\n1:cpuset:/else\n0::/x",
        f"{V1.format('/')}\n{HYBRID}",
        OLD,
        {"job/step": (NO_LIMIT, 700, 0, 0), "job": (1000, 999, 0, 0), "": (NO_LIMIT, 5000, 0, 0)},
        1,
    ),
    "version 1 of docker": ("4:memory:/docker/id", V1.format("/docker/id"), OLD, {"": (1000, 300, 0, 0)}, 700),
    "no groups": ("", "22 1 8:1 / / rw - ext4 /dev/root rw", NEW, {}, math.inf),
}


@pytest.mark.parametrize("where", GROUPS)
def test_the_least_limit_of_a_process_s_groups_counts(tmp_path, where):
    told, mounts, (limit, used, stat), groups, free = GROUPS[where]
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


def test_without_proc_no_limit_is_known(tmp_path):
    assert shm._group_free(str(tmp_path)) == math.inf


def test_a_file_that_cannot_be_made_leaves_no_name(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(InputError, match=r"no shared memory for 4\.19 MB"), contextlib.ExitStack() as made:
        files._create(4 << 20, made)
    assert not list(tmp_path.iterdir())
