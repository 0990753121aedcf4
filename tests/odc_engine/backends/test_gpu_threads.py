"""Threads on groups of one GPU's SMs: gradients of one process, and times that obey the program. Not run yet."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from teams import job_for, minibatch

from odc_engine.backends import threads
from odc_engine.backends.backend import Use
from odc_engine.devices.member import as_block
from odc_engine.devices.thread import Thin
from odc_engine.places import green
from odc_engine.runs import launch_threads
from odc_engine.runs.verify import reference_gradients, relative_errors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
BOUND = 1e-5
SYNCS = ("collective", "deferred", "on-demand")


def on_partitions(job, work):
    """What `work(device)` returns on each group of SMs."""
    devices, found = len(job.schedules[0].devices), {}

    def perform(memory):
        with Thin(job, memory) as device:
            found[memory.rank] = work(device)

    assert launch_threads.run(perform, devices, 60.0, places=threads.CUDA.places(Use(devices))) == 0
    return [found[rank] for rank in range(devices)]


def gradients(device):
    device.gradients(device.job.schedules[0])
    return device.whole_gradients()


@pytest.mark.parametrize("nodes", [{}, {"sharding": "hybrid", "devices_per_node": 2}], ids=["full", "hybrid"])
@pytest.mark.parametrize("accumulate", ["locked", "slots"])
@pytest.mark.parametrize("sync", SYNCS)
def test_gradients_equal_one_process(sync, accumulate, nodes):
    counts = (3, 0, 1, 2) if sync == "on-demand" else (2, 2, 2, 2)
    job = replace(job_for(minibatch(counts), sync=sync, accumulate=accumulate, **nodes), backend=threads.CUDA)
    reference = reference_gradients(job, job.schedules[0])
    for mine in on_partitions(job, gradients):
        assert max(relative_errors(mine, reference).values()) <= BOUND


def timed(device):
    """Kernels are compiled before: the time between two marks is told the less exactly the longer it is."""
    device.warm_up(device.job.schedules[0])
    return device.minibatch(0)


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("sync", SYNCS)
def test_times_conform_to_the_program(sync, emulate):
    counts = (3, 0, 1, 2) if sync == "on-demand" else (2, 2, 2, 2)
    job = replace(job_for(minibatch(counts), sync=sync, emulate=emulate, gpu="a100"), backend=threads.CUDA)
    program = job.program_of(job.schedules[0])
    asked, had = as_block(on_partitions(job, timed))
    slack = 5e-6  # some readings of a GPU's clock, of half a microsecond each
    assert np.isfinite(asked).all()
    assert (had >= asked).all()
    for i, step in enumerate(program.steps):
        here = step.microbatch < np.array(counts)
        for needed in step.after:
            assert (asked[i] >= had[needed] - slack)[here].all(), (i, needed)
        if step.meets:
            assert (had[i] >= asked[i].max() - slack).all(), i


def test_groups_have_equal_shares():
    every = torch.cuda.get_device_properties(0).multi_processor_count
    assert [part.sms for part in green.partitions(4, green.share(4))] == [every // 4 // 8 * 8] * 4
