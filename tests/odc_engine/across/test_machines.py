"""What tests take for machines is apart as machines are, and goes with the tests."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import machines as made
import pytest
import torch.distributed as dist
from machines import Machines

BOOT = Path("/proc/sys/kernel/random/boot_id")


def facts(rank: int) -> tuple[str, str, str, list[str]]:
    (Path("/dev/shm") / f"of-{rank}").touch()
    dist.barrier()
    found = sorted(path.name for path in Path("/dev/shm").iterdir())
    dist.barrier()
    (Path("/dev/shm") / f"of-{rank}").unlink()
    return BOOT.read_text(), socket.gethostname(), str(Path("/proc/self/ns/pid").readlink()), found


def test_two_machines_share_nothing_but_a_network(machines):
    every = machines(2, 2).run(facts)
    for one, other in ((0, 1), (2, 3)):
        assert every[one] == every[other]
    assert all(mine != its for mine, its in zip(every[0], every[2], strict=True))
    assert all(boot != BOOT.read_text() for boot, *_ in every)
    assert every[0][3] == ["of-0", "of-1"]


@pytest.fixture(params=["root", "anybody"])
def kind(request, monkeypatch, machines):  # noqa: ARG001 - which skips where there can be none
    """As root makes them, or in a namespace in which whoever asks is root."""
    monkeypatch.setattr(made, "_user", lambda: ["--user", "--map-root-user"] if request.param == "anybody" else [])
    if request.param == "root" and os.geteuid():
        pytest.skip("needs root")
    if why := made.hindrance():
        pytest.skip(why)


def test_machines_end_with_their_processes_and_leave_no_name(kind):  # noqa: ARG001
    with Machines(2) as both:
        child = subprocess.Popen(both.command(0, "sleep", "60"))
        _until(lambda: len(both.machines[0].pids()) == 1)
        pids = [machine.pid for machine in both.machines]
        both.machines[0].kill()
        assert child.wait(10) != 0
        assert Path(f"/proc/{pids[1]}").exists()
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert not list(Path("/run").glob("netns/*"))


MAKES = """
import machines, time
both = machines.Machines(2)
print(*[one.pid for one in both.machines], flush=True)
time.sleep(60)
"""


def test_a_killed_test_run_leaves_no_machine(machines):  # noqa: ARG001
    command = [sys.executable, "-c", MAKES]
    environment = os.environ | {"PYTHONPATH": str(Path(made.__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert len(pids) == 2
        run.kill()
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def _until(what, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
