"""A device that is a thread on streams of a GPU, which takes nothing but torch and Triton."""

import jobs
import numpy as np
import pytest

from odc_engine.job import job_of

pytestmark = [pytest.mark.gpu, pytest.mark.limit(25)]
SLACK, LATE = 5e-6, 1e-3  # seconds: some readings of a GPU's clock; what a CPU's may be read late by
BOUND, HALF = 1e-5, 0.05  # of gradients in fp32 and in bf16, over the largest one of the parameter
SYNCS = ("on-demand", "collective", "deferred")


@pytest.fixture
def make_job(device, seconds):
    """`make_job(**options)` has three microbatches, run by a thread."""

    def made(**options):
        return job_of(jobs.file_of((3,)), backend="threads", device=device, timeout=seconds, **options)

    return made


def on_each(job, work):
    """What `work(device)` returns on each device."""
    from odc_engine.runs.start import on_devices

    found = {}

    def perform(device):
        found[device.rank] = work(device)

    assert on_devices(job, perform) == 0, "a device failed, see its output"
    return [found[rank] for rank in range(job.devices)]


def largest_error(job):
    """Over all devices, against one process in fp64."""
    from odc_engine.runs.verify import reference_gradients, relative_errors

    def gradients(device):
        device.gradients(job.schedules[0])
        return device.whole_gradients()

    reference = reference_gradients(job, job.schedules[0])
    return max(max(relative_errors(mine, reference).values()) for mine in on_each(job, gradients))


def disobedient_steps(job, slack):
    """Steps that began before what they need was done, or ended before they began."""
    from odc_engine.devices.run_device import as_block

    def timed(device):
        device.warm_up(job.schedules[0])  # kernels are compiled before
        return device.minibatch(0)

    asked, had = as_block(on_each(job, timed))
    if not np.isfinite(asked).all() or (had < asked).any():
        return ["times that are none"]
    program, held, wrong = job.program_of(job.schedules[0]), np.array(job.schedules[0].microbatches), []
    before = program.previous_in_lane()
    for i, step in enumerate(program.steps):
        here = step.microbatch < held
        needs = (*step.after, *([before[i]] if before[i] >= 0 else []))
        early = [needed for needed in needs if (asked[i] < had[needed] - slack)[here].any()]
        late = step.meets and (had[i] < asked[i].max() - slack).any()
        if early or late:
            wrong.append(f"step {i} ({step.kind}) did not wait for {early or 'all devices'}")
    return wrong


@pytest.mark.parametrize(("sync", "accumulate"), [*((sync, "locked") for sync in SYNCS), ("on-demand", "slots")])
def test_gradients(make_job, note, sync, accumulate):
    """Does a thread on streams of a GPU get the gradients of one process?"""
    error = largest_error(make_job(sync=sync, accumulate=accumulate))
    note(largest_error=error)
    assert error <= BOUND


def test_half_precision(make_job, note, device):
    """Does a whole minibatch in bf16 finish, with about the same gradients?"""
    job = make_job(sync="on-demand", dtype="bfloat16")
    error = largest_error(job)
    note(largest_error=error)
    assert error <= HALF
    assert disobedient_steps(job, SLACK if device == "cuda" else LATE) == []


@pytest.mark.parametrize("sync", SYNCS)
def test_times_of_steps(make_job, device, sync):
    """Does every step begin after what it needs, with real and with emulated compute?"""
    for emulate in (False, True):
        job = make_job(sync=sync, emulate=emulate, gpu="a100")
        assert disobedient_steps(job, SLACK if device == "cuda" else LATE) == []
