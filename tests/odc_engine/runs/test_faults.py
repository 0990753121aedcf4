"""One device killed, stopped or wrong, anywhere: every other ends soon, in one line that names it; nothing is left."""

import errno
import os
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

SOON = 20.0  # seconds from a death to the last survivor's end: who only waits gives up after 30
TIMEOUT = 2.0
NAMED = f"device {VICTIM} "
# Of a survivor whose links end with those of another, where a machine is busy.
LEFT = "another device left before it could say so; its own line tells why"
QUEUE = ["holding the queue", "an entry taken"]
ANYWHERE = [("on-demand", "shm", at) for at in ("forward", "backward", "lock", "before a meeting", "after a meeting")]
ANYWHERE += [("collective", "shm", place) for place in ("lock", "before a transfer", "backward")]
ANYWHERE += [("collective", "torch", place) for place in ("forward", "backward", "after a meeting")]
AT_THE_QUEUE = [("on-demand", "shm", place) for place in QUEUE]
OTHERS = ("sem.", "torch_")  # semaphores of Python and batches of torch's loaders, of which the engine has none


@pytest.fixture
def nothing_left():
    """No name in shared memory or in the temporary folder that was not there before."""
    before = named_memory()
    yield
    assert named_memory() <= before


def named_memory() -> set[Path]:
    found = [*Path("/dev/shm").glob("*"), *Path(tempfile.gettempdir()).glob("odc-*")]
    return {path for path in found if path.is_file() and not path.name.startswith(OTHERS)}


def ended(folder: Path, work, *args, code: int = 1, soon: float = SOON, **options) -> faults.Ended:
    """A run in which the victim meets with a fault, and all whose processes have ended soon."""
    found = faults.run(work, folder, *args, **options)
    assert found.code == code
    assert found.ended < soon
    assert all(faults.gone(pid) for pid in found.pids)
    return found


def struck(folder: Path, where: tuple[str, str, str], fault: int, timeout=30.0, soon=SOON) -> faults.Ended:
    sync, backend, place = where
    job = faults.queued_job(timeout) if place in QUEUE else faults.job(sync, backend, timeout)
    return ended(folder, faults.training, job, place, fault, timeout=timeout, soon=soon)


@pytest.mark.by_default(6)
@pytest.mark.parametrize("fault", [KILL, STOP])
@pytest.mark.parametrize("where", [*ANYWHERE, *AT_THE_QUEUE], ids="-".join)
@pytest.mark.usefixtures("nothing_left")
def test_a_killed_or_stopped_device_is_named_by_all_others(tmp_path, capfd, where, fault):
    """Soon, or within the timeout."""
    stop = (TIMEOUT, TIMEOUT + SOON) if fault == STOP else ()
    found = struck(tmp_path / "run", where, fault, *stop)
    faults.named(found)
    assert found.lines[VICTIM] == ()
    others = [line for line in capfd.readouterr().err.splitlines() if "did not end within" not in line or NAMED in line]
    assert len(others) == 1  # beside who takes long to go, on a busy machine
    assert NAMED in others[0]


def too_busy(memory: SharedMemory, folder: Path) -> None:
    """The others have no reason to look at anybody for ten minutes."""
    if memory.rank == VICTIM:
        faults.strike(folder, KILL)
    time.sleep(600)


def test_a_device_that_is_too_busy_to_notice_is_ended(tmp_path):
    ended(tmp_path / "run", too_busy)


WRONG = [("on-demand", "shm"), ("collective", "shm"), ("collective", "torch"), ("deferred", "shm")]


@pytest.mark.parametrize(("sync", "backend"), WRONG)
def test_a_gradient_that_is_not_finite_is_named(tmp_path, sync, backend):
    """Its unit, its device and its microbatch, where one is added up at a time."""
    found = struck(tmp_path / "run", (sync, backend, "not finite"), NAN)
    faults.named(found)
    (line,) = found.lines[VICTIM]
    assert all(word in line for word in ("layers.1 ", f"device {VICTIM}, ", "0 to 1" if sync == "deferred" else "h 1"))


def refused(memory: SharedMemory, folder: Path, error: Exception) -> None:
    if memory.rank == VICTIM:
        faults.strike(folder, NAN)
        raise error
    memory.allocate(4096)


FULL = OSError(errno.EMFILE, "Too many open files")
FAILURES = [(InputError("what", fix="do"), 2), (EngineError("what"), 1), (KeyError("what"), 1), (FULL, 1)]


@pytest.mark.parametrize(("error", "code"), FAILURES)
def test_nobody_waits_for_a_device_that_has_failed(tmp_path, error, code):
    found = ended(tmp_path / "run", refused, error, code=code)
    faults.named(found)
    assert len(found.lines[VICTIM]) == 1 or isinstance(error, KeyError)


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
    found = ended(tmp_path / "run", work, soon=SOON)
    faults.named(found)
    if work is chained:
        assert found.told[2] < found.told[0]  # or this was no chain
    if work is crashes:
        assert any(line.endswith("in crashes") for line in found.lines[VICTIM])  # it says where


def leaves_mute(memory: SharedMemory, _folder: Path) -> None:
    """What fails has nothing left to tell others with."""
    if memory.rank == VICTIM:
        memory.fail = lambda _: None
        raise FULL
    memory.explain = lambda: None
    dist.barrier()


def test_who_cannot_say_why_it_leaves_is_still_told_of_in_a_line(tmp_path):
    found = faults.run(leaves_mute, tmp_path / "run")
    assert found.code == 1
    assert [len(lines) for lines in found.lines] == [1] * faults.DEVICES


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_many_runs_leave_nothing(tmp_path):
    files = Path("/proc/self/fd")
    open_before = len(list(files.iterdir()))
    for number in range(50 if "THOROUGH" in os.environ else 10):
        where, fault = ANYWHERE[number % len(ANYWHERE)], STOP if number % 5 == 4 else KILL
        found = struck(tmp_path / str(number), where, fault, TIMEOUT, SOON)
        if LEFT not in str(found.survivors):
            faults.named(found)
    assert len(list(files.iterdir())) <= open_before + 2
