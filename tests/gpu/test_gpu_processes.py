"""Devices that are processes which share a GPU: gradients of one process, and emulated compute that takes its seconds.
They take turns on it, so that no time means anything by itself. On a CPU, processes over shared memory stand in."""

import jobs
import numpy as np
import pytest

from odc_engine.job import job_of
from odcsim import timeline
from odcsim.cost import Load
from odcsim.schedule import Header, Schedule, ScheduleFile

pytestmark = [pytest.mark.gpu, pytest.mark.limit(22), pytest.mark.usefixtures("transfers")]
UNEVEN, ALIKE = (3, 0, 1, 2), (2, 2, 2, 2)  # microbatches of each device
SYNCS = ("on-demand", "collective", "deferred")
SLACK = 1e-5


@pytest.fixture
def on(cpu, seconds):
    return {"backend": "shm" if cpu else "cuda_ipc", "timeout": seconds}


def same_gradients(file, **options):
    from odc_engine.runs.verify import verify

    return verify(file, job_of(file, **options), False) == 0


def uneven(sync, devices):
    """As uneven as a sync can take them."""
    return jobs.file_of((UNEVEN if sync == "on-demand" else ALIKE)[:devices])


@pytest.mark.parametrize("sync", SYNCS)
def test_two_processes(on, sync):
    """Do two processes over cuda_ipc get the gradients of one?"""
    assert same_gradients(uneven(sync, 2), sync=sync, **on)


WAYS = [{"sync": sync} for sync in SYNCS]
WAYS += [
    {"sync": "on-demand"} | more for more in ({"accumulate": "slots"}, {"sharding": "hybrid", "devices_per_node": 2})
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_four_processes(on, way):
    """Do four processes, with every way to sum gradients, and in nodes?"""
    assert same_gradients(uneven(way["sync"], 4), **way, **on)


def queued(counts, waiting, first):
    """A minibatch with so many samples that wait in a queue."""
    schedule = jobs.minibatch(*counts, first=first)
    n = len(schedule.lengths)
    lengths = schedule.lengths + tuple(2 + 7 * i % 12 for i in range(waiting))
    queue = tuple((n + i,) for i in range(waiting))
    return Schedule.of(lengths, schedule.devices, tuple(range(first, first + len(lengths))), queue=queue)


def test_a_shared_queue(on):
    """Do processes that share a queue get the gradients of one?"""
    schedules = queued((2, 0, 1), 5, 0), queued((0, 0, 0), 2, 100)
    file = ScheduleFile(Header("native", "nano", "", 64, 3, 0), schedules).sealed()
    assert same_gradients(file, sync="on-demand", **on)


@pytest.mark.parametrize("sync", SYNCS[:2])
def test_emulated_compute(on, tmp_path, sync):
    """Does emulated compute take its seconds on the stream?"""
    from odc_engine.runs.run import run

    counts = (UNEVEN if sync == "on-demand" else ALIKE)[:2]
    file = jobs.file_of(counts, counts)
    job = job_of(file, sync=sync, emulate=True, gpu="a100", **on)
    assert run(file, job, str(tmp_path / "run.npz"), quiet=True) == 0
    [block] = timeline.read(tmp_path / "run.npz").blocks
    load, spans = Load.of(job.cost.model, file.schedules), block.had - block.asked
    seconds = job.cost.durations(block.program, load)
    assert np.isfinite(spans).all()
    assert (spans >= 0).all()
    for i, step in enumerate(block.program.steps):
        if step.kind == "compute":
            assert (spans[i] >= seconds[step.duration] - SLACK).all(), f"step {i} took less than it stands for"
