"""One device killed, stopped or wrong, anywhere: every other ends soon, in one line that names it; nothing is left."""

import errno
import re
import signal
import tempfile
import time
from pathlib import Path

import faults
import pytest
import torch.distributed as dist
from faults import KILL, NAN, STOP, VICTIM

from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.errors import EngineError
from odcsim.errors import InputError

SOON = 5.0  # seconds from a death to the last survivor's end
TIMEOUT = 2.0
# Of a survivor whose links end with those of another, where a machine is busy.
LEFT = "another device left before it could say so; its own line tells why"
SHM = ["forward", "backward", "lock", "before a meeting", "after a meeting"]
ANYWHERE = [
    *(("on-demand", "shm", place) for place in SHM),
    *(("collective", "shm", place) for place in ("lock", "before a transfer", "backward")),
    *(("collective", "torch", place) for place in ("forward", "backward", "after a meeting")),
]
USUAL = (("on-demand", "shm", "lock"),)  # the others wait as long for the same timeout
STOPPED = [pytest.param(*where, marks=() if where in USUAL else pytest.mark.slow) for where in ANYWHERE]


def named(ended: faults.Ended, message: str) -> None:
    """Each survivor has said one line, and that it is device 1's fault."""
    for device, lines in ended.survivors.items():
        assert len(lines) == 1, lines
        assert re.fullmatch(rf"odc_engine: error: device {device}: device {VICTIM} {message}.*", lines[0]), lines


@pytest.fixture
def nothing_left():
    """No name in shared memory or in the temporary folder that was not there before."""
    before = named_memory()
    yield
    assert named_memory() <= before


def named_memory() -> set[Path]:
    found = [*Path("/dev/shm").glob("*"), *Path(tempfile.gettempdir()).glob("odc-*")]
    return {path for path in found if path.is_file()}


@pytest.mark.parametrize(("sync", "backend", "place"), ANYWHERE)
@pytest.mark.usefixtures("nothing_left")
def test_a_killed_device_is_named_by_all_others(tmp_path, capfd, sync, backend, place):
    ended = faults.run(faults.training, tmp_path / "run", faults.job(sync, backend), place, KILL)
    assert ended.code == 1
    named(ended, rf"died \(pid {ended.pids[VICTIM]}\)")
    assert ended.lines[VICTIM] == ()
    assert ended.ended < SOON
    assert all(faults.gone(pid) for pid in ended.pids)
    told = capfd.readouterr().err.splitlines()
    assert told == [f"odc_engine: error: device {VICTIM} (pid {ended.pids[VICTIM]}) was killed by SIGKILL"]


@pytest.mark.parametrize(("sync", "backend", "place"), STOPPED)
@pytest.mark.usefixtures("nothing_left")
def test_a_stopped_device_is_named_within_the_timeout(tmp_path, capfd, sync, backend, place):
    job = faults.job(sync, backend, TIMEOUT)
    ended = faults.run(faults.training, tmp_path / "run", job, place, STOP, timeout=TIMEOUT)
    assert ended.code == 1
    named(ended, "")
    assert all(f"stopped (pid {ended.pids[VICTIM]})" in line for (line,) in ended.survivors.values())
    assert max(ended.told) < TIMEOUT + 2
    assert ended.ended < TIMEOUT + SOON
    assert all(faults.gone(pid) for pid in ended.pids)
    (told,) = capfd.readouterr().err.splitlines()
    assert re.match(rf"odc_engine: error: device {VICTIM} did not end within 3 s of device [02]", told)


@pytest.mark.parametrize("place", ["holding the queue", "an entry taken"])
@pytest.mark.usefixtures("nothing_left")
def test_a_device_killed_at_the_queue_is_named_and_holds_nobody_up(tmp_path, place):
    ended = faults.run(faults.training, tmp_path / "run", faults.queued_job(), place, KILL)
    assert ended.code == 1
    named(ended, rf"died \(pid {ended.pids[VICTIM]}\)")
    assert ended.ended < SOON
    assert all(faults.gone(pid) for pid in ended.pids)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_device_stopped_with_the_queue_in_hand_is_named(tmp_path):
    job = faults.queued_job(TIMEOUT)
    ended = faults.run(faults.training, tmp_path / "run", job, "holding the queue", STOP, timeout=TIMEOUT)
    assert ended.code == 1
    named(ended, "")
    assert all(f"stopped (pid {ended.pids[VICTIM]})" in line for (line,) in ended.survivors.values())
    assert ended.ended < TIMEOUT + SOON


def slow(memory: SharedMemory, folder: Path) -> None:
    """The others have no reason to look at anybody for ten minutes."""
    if memory.rank == VICTIM:
        faults.strike(folder, KILL)
    time.sleep(600)


def test_a_device_that_is_too_busy_to_notice_is_ended(tmp_path, capfd):
    ended = faults.run(slow, tmp_path / "run")
    assert ended.code == 1
    assert ended.ended < SOON
    told = capfd.readouterr().err
    for device in (0, 2):
        assert f"device {device} did not end within 3 s of device {VICTIM} and was killed\n" in told


@pytest.mark.parametrize(
    ("sync", "backend", "microbatch"),
    [
        ("on-demand", "shm", "microbatch 1"),
        ("collective", "shm", "microbatch 1"),
        ("collective", "torch", "microbatch 1"),
        ("deferred", "shm", "one of microbatches 0 to 1"),
    ],
)
def test_a_gradient_that_is_not_finite_is_named(tmp_path, sync, backend, microbatch):
    ended = faults.run(faults.training, tmp_path / "run", faults.job(sync, backend), "not finite", NAN)
    assert ended.code == 1
    culprit = f"a gradient of layers.1 is not finite (device {VICTIM}, {microbatch})"
    assert ended.lines[VICTIM] == (f"odc_engine: error: device {VICTIM}: {culprit}",)
    named(ended, "failed: its own error says why")
    assert ended.ended < SOON


def refused(memory: SharedMemory, folder: Path, error: Exception) -> None:
    if memory.rank == VICTIM:
        faults.strike(folder, NAN)
        raise error
    memory.allocate(4096)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("what", fix="do"), 2),
        (EngineError("what"), 1),
        (KeyError("what"), 1),
        (OSError(errno.EMFILE, "Too many open files"), 1),
    ],
)
def test_nobody_waits_for_a_device_that_has_failed(tmp_path, error, code):
    ended = faults.run(refused, tmp_path / "run", error)
    assert ended.code == code
    named(ended, "failed: its own error says why")
    if isinstance(error, OSError):
        line = f"odc_engine: error: device {VICTIM}: Too many open files; see what this machine has left"
        assert ended.lines[VICTIM] == (line,)
    assert ended.ended < SOON


def unequal(memory: SharedMemory, _folder: Path) -> None:
    for _ in range(3 if memory.rank == VICTIM else 4):
        memory.meet(0)


def test_a_device_that_leaves_early_is_told_from_one_that_died(tmp_path):
    ended = faults.run(unequal, tmp_path / "run")
    assert ended.code == 1
    named(ended, "left: it synchronized fewer times than the others")


def chained(memory: SharedMemory, folder: Path) -> None:
    """Device 0 learns of the death only when device 2 has ended for it too."""
    if memory.rank == VICTIM:
        faults.strike(folder, KILL)
    if memory.rank == 0:
        assert faults.gone(memory.peers.pids[2], 20)
    memory.meet(0)


def test_the_first_to_die_is_named_though_others_have_died_of_it(tmp_path):
    ended = faults.run(chained, tmp_path / "run")
    fault = f"device {VICTIM} died (pid {ended.pids[VICTIM]})"
    assert ended.survivors == {device: (f"odc_engine: error: device {device}: {fault}",) for device in (0, 2)}
    assert ended.told[2] < ended.told[0]  # or this was no chain


def leaves_mute(memory: SharedMemory, _folder: Path) -> None:
    """What fails has nothing left to tell others with."""
    if memory.rank == VICTIM:
        memory.fail = lambda _: None
        raise OSError(errno.EMFILE, "Too many open files")
    memory.explain = lambda: None
    dist.barrier()


def test_who_cannot_say_why_it_leaves_is_still_told_of_in_a_line(tmp_path):
    ended = faults.run(leaves_mute, tmp_path / "run")
    assert ended.code == 1
    assert ended.lines[VICTIM] == (
        f"odc_engine: error: device {VICTIM}: Too many open files; see what this machine has left",
    )
    for device, lines in ended.survivors.items():
        told = f"odc_engine: error: device {device}: another device left before it could say so; its own line tells why"
        assert lines == (told,)


def crashes(memory: SharedMemory, folder: Path) -> None:
    if memory.rank == VICTIM:
        faults.strike(folder, signal.SIGSEGV)
    memory.meet(0)


def test_a_device_that_crashes_says_where(tmp_path):
    ended = faults.run(crashes, tmp_path / "run")
    assert ended.lines[VICTIM][0] == "Fatal Python error: Segmentation fault"
    assert any(line.endswith("in crashes") for line in ended.lines[VICTIM])
    named(ended, "died")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_fifty_runs_leave_nothing(tmp_path):
    open_before = open_files()
    for number in range(50):
        sync, backend, place = ANYWHERE[number % len(ANYWHERE)]
        fault = STOP if number % 5 == 4 else KILL
        job = faults.job(sync, backend, 1.0)
        ended = faults.run(faults.training, tmp_path / str(number), job, place, fault, timeout=1.0)
        if LEFT not in str(ended.survivors):
            named(ended, "")
        assert ended.ended < 2 * SOON
        assert all(faults.gone(pid) for pid in ended.pids)
    assert open_files() <= open_before + 2
