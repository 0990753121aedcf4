"""One device killed, stopped or wrong, anywhere: every other ends soon, in one line that names it; nothing is left."""

import errno
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
QUEUE = ["holding the queue", "an entry taken"]
ANYWHERE = [
    *(("on-demand", "shm", place) for place in SHM),
    *(("collective", "shm", place) for place in ("lock", "before a transfer", "backward")),
    *(("collective", "torch", place) for place in ("forward", "backward", "after a meeting")),
]
AT_THE_QUEUE = [("on-demand", "shm", place) for place in QUEUE]
USUAL = ("on-demand", "shm", "lock")  # the others wait as long for the same timeout
OTHERS = ("sem.", "torch_")  # semaphores of Python and batches of torch's loaders, of which the engine has none
slow = pytest.mark.slow


@pytest.fixture
def nothing_left():
    """No name in shared memory or in the temporary folder that was not there before."""
    before = named_memory()
    yield
    assert named_memory() <= before


def named_memory() -> set[Path]:
    found = [*Path("/dev/shm").glob("*"), *Path(tempfile.gettempdir()).glob("odc-*")]
    return {path for path in found if path.is_file() and not path.name.startswith(OTHERS)}


def struck(folder: Path, where: tuple[str, str, str], fault: int, timeout: float = 30.0) -> faults.Ended:
    """A run in which the victim meets with it; all its processes have ended."""
    sync, backend, place = where
    job = faults.queued_job(timeout) if place in QUEUE else faults.job(sync, backend, timeout)
    ended = faults.run(faults.training, folder, job, place, fault, timeout=timeout)
    assert ended.code == 1
    assert all(faults.gone(pid) for pid in ended.pids)
    return ended


@pytest.mark.by_default(5)
@pytest.mark.parametrize("where", [*ANYWHERE, *AT_THE_QUEUE], ids="-".join)
@pytest.mark.usefixtures("nothing_left")
def test_a_killed_device_is_named_by_all_others(tmp_path, capfd, where):
    ended = struck(tmp_path / "run", where, KILL)
    faults.named(ended)
    assert ended.lines[VICTIM] == ()
    assert ended.ended < SOON
    (line,) = capfd.readouterr().err.splitlines()
    assert f"device {VICTIM} " in line


STOPPED = [pytest.param(w, marks=() if w == USUAL else slow) for w in (*ANYWHERE, AT_THE_QUEUE[0])]


@pytest.mark.parametrize("where", STOPPED, ids="-".join)
@pytest.mark.usefixtures("nothing_left")
def test_a_stopped_device_is_named_within_the_timeout(tmp_path, capfd, where):
    ended = struck(tmp_path / "run", where, STOP, TIMEOUT)
    faults.named(ended)
    assert max(ended.told) < TIMEOUT + 2
    assert ended.ended < TIMEOUT + SOON
    (line,) = capfd.readouterr().err.splitlines()
    assert f"device {VICTIM} " in line


def too_busy(memory: SharedMemory, folder: Path) -> None:
    """The others have no reason to look at anybody for ten minutes."""
    if memory.rank == VICTIM:
        faults.strike(folder, KILL)
    time.sleep(600)


def test_a_device_that_is_too_busy_to_notice_is_ended(tmp_path):
    ended = faults.run(too_busy, tmp_path / "run")
    assert ended.code == 1
    assert ended.ended < SOON
    assert all(faults.gone(pid) for pid in ended.pids)


WRONG = [("on-demand", "shm"), ("collective", "shm"), ("collective", "torch"), ("deferred", "shm")]


@pytest.mark.parametrize(("sync", "backend"), WRONG)
def test_a_gradient_that_is_not_finite_is_named(tmp_path, sync, backend):
    """Its unit, its device and its microbatch, where one is added up at a time."""
    ended = struck(tmp_path / "run", (sync, backend, "not finite"), NAN)
    (line,) = ended.lines[VICTIM]
    assert all(word in line for word in ("layers.1 ", f"device {VICTIM}, ", "0 to 1" if sync == "deferred" else "h 1"))
    faults.named(ended)
    assert ended.ended < SOON


def refused(memory: SharedMemory, folder: Path, error: Exception) -> None:
    if memory.rank == VICTIM:
        faults.strike(folder, NAN)
        raise error
    memory.allocate(4096)


FULL = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("what", fix="do"), 2), (EngineError("what"), 1), (KeyError("what"), 1), (FULL, 1)],
)
def test_nobody_waits_for_a_device_that_has_failed(tmp_path, error, code):
    ended = faults.run(refused, tmp_path / "run", error)
    assert ended.code == code
    faults.named(ended)
    assert len(ended.lines[VICTIM]) == 1 or isinstance(error, KeyError)
    assert ended.ended < SOON


def unequal(memory: SharedMemory, _folder: Path) -> None:
    for _ in range(3 if memory.rank == VICTIM else 4):
        memory.meet(0)


def chained(memory: SharedMemory, folder: Path) -> None:
    """Device 0 learns of the death only when device 2 has ended for it too."""
    if memory.rank == VICTIM:
        faults.strike(folder, KILL)
    if memory.rank == 0:
        assert faults.gone(memory.peers.pids[2], 20)
    memory.meet(0)


def crashes(memory: SharedMemory, folder: Path) -> None:
    if memory.rank == VICTIM:
        faults.strike(folder, signal.SIGSEGV)
    memory.meet(0)


@pytest.mark.parametrize("work", [unequal, chained, crashes])
def test_who_leaves_early_dies_first_or_crashes_is_named(tmp_path, work):
    ended = faults.run(work, tmp_path / "run")
    assert ended.code == 1
    faults.named(ended)
    if work is chained:
        assert ended.told[2] < ended.told[0]  # or this was no chain
    if work is crashes:
        assert any(line.endswith("in crashes") for line in ended.lines[VICTIM])  # it says where


def leaves_mute(memory: SharedMemory, _folder: Path) -> None:
    """What fails has nothing left to tell others with."""
    if memory.rank == VICTIM:
        memory.fail = lambda _: None
        raise FULL
    memory.explain = lambda: None
    dist.barrier()


def test_who_cannot_say_why_it_leaves_is_still_told_of_in_a_line(tmp_path):
    ended = faults.run(leaves_mute, tmp_path / "run")
    assert ended.code == 1
    assert [len(lines) for lines in ended.lines] == [1] * faults.DEVICES


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_fifty_runs_leave_nothing(tmp_path):
    open_before = open_files()
    for number in range(50):
        where = ANYWHERE[number % len(ANYWHERE)]
        ended = struck(tmp_path / str(number), where, STOP if number % 5 == 4 else KILL, timeout=1.0)
        if LEFT not in str(ended.survivors):
            faults.named(ended)
        assert ended.ended < 2 * SOON
    assert open_files() <= open_before + 2
