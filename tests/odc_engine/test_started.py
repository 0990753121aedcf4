"""Who started a process: torchrun, srun, or nobody; and devices that srun alone has started."""

import os
import subprocess
import sys

import numpy as np
import pytest
from jobs import written
from scripts import HELPERS

from odc_engine.cli import main
from odc_engine.started import Started, started
from odcsim import timeline
from odcsim.errors import InputError

TASK = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "6"}
STEP = TASK | {"SLURM_JOB_ID": "812", "SLURM_STEP_ID": "2"}


def test_torchrun_tells_and_counts_before_slurm():
    env = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    expected = Started("torchrun", 2, 4, 0, 2, "env://")
    assert started(env) == started(env | STEP) == expected
    assert not expected.one_machine
    assert started({"RANK": "1", "WORLD_SIZE": "2"}) == Started("torchrun", 1, 2, 1, 2, "env://")


def test_srun_s_three_variables_are_enough():
    place = started(TASK)
    assert place is not None
    assert (place.by, place.rank, place.size, place.local_rank, place.here) == ("srun", 3, 6, 1, 6)
    assert place.address.startswith("tcp://127.0.0.1:")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"},  # the script of a batch job
        STEP | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},  # srun --pty bash
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # salloc
    ],
)
def test_a_process_alone(env):
    assert started(env) is None


@pytest.mark.parametrize(
    ("tasks", "node", "here"), [("2(x3)", 2, 2), ("3,2,1", 1, 2), ("4(x2),1", 2, 1), ("4(x2),1", 1, 4), ("6", 0, 6)]
)
def test_how_many_are_on_this_machine(tasks, node, here):
    place = started(STEP | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)})
    assert place is not None
    assert place.here == here
    assert place.one_machine == (here == 6)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("gpu[7]", "gpu7"),
        ("a,b", "a"),
        ("one", "one"),
        ("rack-2-gpu[01,03]-ib,x", "rack-2-gpu01-ib"),
    ],
)
def test_the_first_machine_has_the_store(nodes, first):
    place = started(STEP | {"SLURM_STEP_NODELIST": nodes})
    assert place is not None
    assert place.address.rpartition(":")[0] == f"tcp://{first}"
    other = started(STEP | {"SLURM_STEP_NODELIST": nodes, "MASTER_ADDR": "there", "MASTER_PORT": "4711"})
    assert other is not None
    assert other.address == "tcp://there:4711"


def test_tasks_of_a_step_agree_on_a_port_and_steps_do_not():
    ports = {started(STEP | {"SLURM_PROCID": str(task)}).address for task in range(6)}
    assert len(ports) == 1
    assert started(STEP | {"SLURM_STEP_ID": "3"}).address not in ports
    for job in range(0, 400_000, 997):
        port = int(started(STEP | {"SLURM_JOB_ID": str(job)}).address.rpartition(":")[2])
        assert 20000 <= port < 32000  # below those that systems hand out


@pytest.mark.parametrize(
    "env", [TASK | {"SLURM_NTASKS": "many"}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "x"}]
)
def test_what_is_no_number_is_refused(env):
    with pytest.raises(InputError):
        started(env)


@pytest.mark.slow
def test_devices_that_srun_has_started_run_a_schedule(tmp_path, free_port):
    schedule, _ = written(tmp_path, (2, 1))
    command = [sys.executable, "-m", "odc_engine", "run", schedule, "--sync", "on-demand"]
    found = on_tasks(2, free_port, [*command, "-o", str(tmp_path / "t.npz")])
    assert [code for code, _ in found] == [0, 0], found
    assert timeline.read(tmp_path / "t.npz").about.devices == 2


@pytest.mark.parametrize(("tasks", "nodes"), [(2, "2"), (3, "2,1")])
def test_what_srun_cannot_have_started_rightly_is_refused_at_once(tmp_path, monkeypatch, tasks, nodes):
    schedule, _ = written(tmp_path, (2, 1, 1))
    for name, value in (STEP | {"SLURM_NTASKS": str(tasks), "SLURM_STEP_TASKS_PER_NODE": nodes}).items():
        monkeypatch.setenv(name, value)
    assert main(["run", schedule, "--sync", "on-demand", "-o", str(tmp_path / "t.npz")]) == 2
    assert not (tmp_path / "t.npz").exists()


@pytest.mark.slow
def test_two_machines_run_a_schedule_over_a_network(tmp_path, free_port):
    """A run as on two machines, but for NVSHMEM itself: meetings over gloo, one clock, bytes fetched and sent."""
    schedule, _ = written(tmp_path, (2, 1), (1, 2))
    command = [sys.executable, "two_machines.py", "run", schedule, "--sync", "on-demand", "--backend", "nvshmem"]
    command += ["--accumulate", "slots", "-o", str(tmp_path / "t.npz")]
    place = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "localhost,other", "GLOO_SOCKET_IFNAME": "lo"}
    found = on_tasks(2, free_port, command, **place)
    assert [code for code, _ in found] == [0, 0], found
    line = timeline.read(tmp_path / "t.npz")
    assert "backend nvshmem, slots" in line.about.hardware
    for block in line.blocks:
        assert (block.had[~np.isnan(block.had)] >= 0).all()


def on_tasks(tasks: int, port: int, command: list[str], **more: str) -> list[tuple[int, str]]:
    """Exit codes and stderr of a command that srun would start so often, without torchrun."""
    given = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(tasks), "MASTER_PORT": str(port)}
    env = os.environ | {"OMP_NUM_THREADS": "1"} | given | more
    processes = [
        subprocess.Popen(
            command,
            env=env | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task), "SLURM_NODEID": str(task)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HELPERS,
        )
        for task in range(tasks)
    ]
    try:
        return [(process.wait(120), process.stderr.read()) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()
