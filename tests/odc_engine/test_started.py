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


ALONE = [
    {},
    {"RANK": "0"},
    {"WORLD_SIZE": "2"},
    {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"},  # the script of a batch job
    STEP | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},  # srun --pty bash
    {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # salloc
]
NO_NUMBER = [TASK | {"SLURM_NTASKS": "many"}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "x"}]
HERE = [("2(x3)", 2, 2), ("3,2,1", 1, 2), ("4(x2),1", 2, 1), ("4(x2),1", 1, 4), ("6", 0, 6)]
FIRST = {
    "gpu[03-05,9],cpu1": "gpu03",
    "gpu[7]": "gpu7",
    "a,b": "a",
    "one": "one",
    "rack-2-gpu[01,03]-ib,x": "rack-2-gpu01-ib",
}


def test_torchrun_tells_and_counts_before_slurm():
    env = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert started(env) == started(env | STEP) == Started("torchrun", 2, 4, 0, 2, "env://")
    assert started({"RANK": "1", "WORLD_SIZE": "2"}) == Started("torchrun", 1, 2, 1, 2, "env://")


def test_srun_s_three_variables_are_enough_and_nothing_starts_a_process_alone():
    place = started(TASK)
    assert place == Started("srun", 3, 6, 1, 6, place.address)
    assert place.address.startswith("tcp://127.0.0.1:")
    assert [started(env) for env in ALONE] == [None] * len(ALONE)
    for env in NO_NUMBER:
        with pytest.raises(InputError):
            started(env)


@pytest.mark.parametrize(("tasks", "node", "here"), HERE)
def test_how_many_are_on_this_machine(tasks, node, here):
    place = started(STEP | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)})
    assert (place.here, place.one_machine) == (here, here == 6)


@pytest.mark.parametrize("nodes", FIRST)
def test_the_first_machine_has_the_store(nodes):
    place = started(STEP | {"SLURM_STEP_NODELIST": nodes})
    assert place.address.rpartition(":")[0] == f"tcp://{FIRST[nodes]}"
    other = started(STEP | {"SLURM_STEP_NODELIST": nodes, "MASTER_ADDR": "there", "MASTER_PORT": "4711"})
    assert other.address == "tcp://there:4711"


def test_tasks_of_a_step_agree_on_a_port_and_steps_do_not():
    [address] = {started(STEP | {"SLURM_PROCID": str(task)}).address for task in range(6)}
    assert started(STEP | {"SLURM_STEP_ID": "3"}).address != address
    for job in range(0, 400_000, 997):
        port = int(started(STEP | {"SLURM_JOB_ID": str(job)}).address.rpartition(":")[2])
        assert 20000 <= port < 32000  # below those that systems hand out


@pytest.mark.parametrize(("tasks", "nodes"), [(2, "2"), (3, "2,1")])
def test_what_srun_cannot_have_started_rightly_is_refused_at_once(tmp_path, monkeypatch, tasks, nodes):
    schedule, _ = written(tmp_path, (2, 1, 1))
    for name, value in (STEP | {"SLURM_NTASKS": str(tasks), "SLURM_STEP_TASKS_PER_NODE": nodes}).items():
        monkeypatch.setenv(name, value)
    assert main(["run", schedule, "--sync", "on-demand", "-o", str(tmp_path / "t.npz")]) == 2
    assert not (tmp_path / "t.npz").exists()


@pytest.fixture
def run_on_tasks(tmp_path, free_port):
    """The timeline of a run that srun would start twice, without torchrun."""

    def run(minibatches, program, options="", **place):
        schedule, _ = written(tmp_path, *minibatches)
        command = [sys.executable, *program, "run", schedule, "--sync", "on-demand", *options.split()]
        given = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "MASTER_PORT": str(free_port)} | place
        env, processes = os.environ | {"OMP_NUM_THREADS": "1"} | given, []
        for task in "01":
            own = dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), task)
            how = {"env": env | own, "cwd": HELPERS, "text": True}
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            processes.append(subprocess.Popen([*command, "-o", str(tmp_path / "t.npz")], **how, **pipes))
        try:
            for process in processes:
                _, words = process.communicate(timeout=120)
                assert process.returncode == 0, words
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        return timeline.read(tmp_path / "t.npz")

    return run


@pytest.mark.slow
def test_devices_that_srun_has_started_run_a_schedule(run_on_tasks):
    assert run_on_tasks([(2, 1)], ["-m", "odc_engine"]).about.devices == 2


@pytest.mark.slow
def test_two_machines_run_a_schedule_over_a_network(run_on_tasks):
    """A run as on two machines, but for NVSHMEM itself: meetings over gloo, one clock, bytes fetched and sent."""
    place = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "localhost,other", "GLOO_SOCKET_IFNAME": "lo"}
    how = "--backend nvshmem --accumulate slots"
    line = run_on_tasks([(2, 1), (1, 2)], ["two_machines.py"], how, **place)
    assert "backend nvshmem, slots" in line.about.hardware
    for block in line.blocks:
        assert (block.had[~np.isnan(block.had)] >= 0).all()
