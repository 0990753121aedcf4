"""Schedules of many small samples, and devices that are threads of the test's own process."""

from dataclasses import replace

import jobs

from odc_engine.devices.process import ProcessDevice
from odc_engine.devices.thread import ThreadDevice
from odc_engine.job import job_of
from odc_engine.runs import launch_threads
from odc_engine.runs.verify import reference_gradients, relative_errors
from odcsim.schedule import Header, ScheduleFile


def minibatch(counts, lengths=None):
    """A minibatch with one sample in each microbatch."""
    made = jobs.minibatch(*counts)
    return replace(made, lengths=tuple(lengths or made.lengths), samples=())


def file_of(*schedules):
    header = Header("native", "nano", "", 64, len(schedules[0].devices), 0)
    known = [replace(s, samples=tuple(range(100 * i, 100 * i + len(s.lengths)))) for i, s in enumerate(schedules)]
    return ScheduleFile(header, tuple(known)).sealed()


def job_for(*schedules, sync="on-demand", accumulate="locked", **options):
    return job_of(file_of(*schedules), sync=sync, backend="threads", accumulate=accumulate, **options)


def on_threads(job, work, devices=None):
    """What `work(device)` returns on each device. A failure of one is the test's."""
    devices, found = devices or len(job.schedules[0].devices), {}

    def perform(memory):
        with ThreadDevice(job, memory) as device:
            found[memory.rank] = work(device)

    assert launch_threads.run(perform, devices, 20.0) == 0
    return [found[rank] for rank in range(devices)]


def gradients(device):
    device.gradients(device.job.schedules[0])
    return device.whole_gradients()


def trained(device):
    for number in range(len(device.job.schedules)):
        device.minibatch(number)
    return device.whole_weights()


def recorded(device):
    return [device.minibatch(number) for number in range(len(device.job.schedules))]


def worst(job):
    every = on_threads(job, gradients)
    reference = reference_gradients(job, job.schedules[0])
    return max(max(relative_errors(mine, reference).values()) for mine in every)


def shm_records(rank, job):
    """What a device of a pool records of every minibatch."""
    device = ProcessDevice(job, rank)
    device.warm_up(job.schedules[0])
    found = [device.minibatch(number) for number in range(len(job.schedules))]
    device.meet()
    device.close()
    return found
