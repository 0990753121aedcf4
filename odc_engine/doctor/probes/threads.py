"""A device that is a thread of this process: gradients of one process in fp64, and times that obey the program."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from odc_engine.doctor.probes.base import FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.small import SYNCS, file_of, job_for, minibatch
from odc_engine.job import Job, job_of

DEVICES = 1  # a thread has a GPU to itself
BOUND, HALF = 1e-5, 0.05  # of gradients in fp32 and in bf16, over the largest one of the parameter
SLACK = 5e-6  # seconds: some readings of a GPU's clock, of half a microsecond each
LATE = 1e-3  # what a CPU's clock may be read late by


def one_stream(hearing: Hearing) -> Answer:
    """All syncs, and a queue."""
    jobs = [(sync, job_for(sync, DEVICES, **_on(hearing))[1]) for sync in SYNCS]
    jobs.append(("queue", job_of(file_of(minibatch((2,), queue=6)), sync="on-demand", **_on(hearing))))
    return _gradients(hearing, jobs)


def half(hearing: Hearing) -> Answer:
    """A whole minibatch in bf16: it ends, its times obey the program, and its gradients are fp32's within reason."""
    job = job_for("on-demand", DEVICES, dtype="bfloat16", **_on(hearing))[1]
    answer = _gradients(hearing, [("bf16", job)], HALF)
    wrong = _disobeyed(job, _on_each(job, _timed), hearing)
    return replace(answer, status=FAILED, found=f"{wrong[0]}; {answer.found}") if wrong else answer


def times(hearing: Hearing) -> Answer:
    """Compute that is real, and emulated; in all syncs."""
    wrong = []
    for sync, emulate in product(SYNCS, (False, True)):
        job = job_for(sync, DEVICES, emulate=emulate, gpu="a100", **_on(hearing))[1]
        found = _disobeyed(job, _on_each(job, _timed), hearing)
        hearing.note(**{f"{sync}{' emulated' if emulate else ''}": found or "as they shall be"})
        wrong += found
    return Answer(FAILED if wrong else OK, "; ".join(wrong[:3]) or "every step began after what it needs")


def _on(hearing: Hearing) -> dict[str, Any]:
    return {"backend": "threads", "device": hearing.device, "timeout": hearing.patience}


def _on_each(job: Job, work: Callable[[Any], Any]) -> list[Any]:
    """What `work(device)` returns on each device."""
    from odc_engine.runs.start import on_devices

    found = {}

    def perform(device: Any) -> None:
        found[device.rank] = work(device)

    if on_devices(job, perform):
        raise RuntimeError("a device failed, see its log")
    return [found[rank] for rank in range(job.devices)]


def _gradients(hearing: Hearing, jobs: Sequence[tuple[str, Job]], bound: float = BOUND) -> Answer:
    """The largest error of each job. One that fails stops no other."""
    from odc_engine.runs.verify import reference_gradients, relative_errors

    worst: dict[str, float] = {}
    wrong = []
    for name, job in jobs:
        try:
            reference = reference_gradients(job, job.schedules[0])
            every = _on_each(job, _whole)
            worst[name] = max(max(relative_errors(mine, reference).values()) for mine in every)
        except Exception as error:
            worst[name] = math.inf
            wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        hearing.note(worst=worst)
        if bound < worst[name] < math.inf:
            wrong.append(f"{name}: gradients differ by {worst[name]:.1e}")
    found = f"{len(jobs) - len(wrong)} of {len(jobs)} have the gradients of one process"
    told = max((error for error in worst.values() if error < math.inf), default=math.inf)
    return Answer(FAILED if wrong else OK, "; ".join([*wrong[:3], f"{found}, largest error {told:.1e}"]))


def _whole(device: Any) -> Any:
    device.gradients(device.job.schedules[0])
    return device.whole_gradients()


def _timed(device: Any) -> Any:
    """Kernels are compiled before: the time between two marks is told the less exactly the longer it is."""
    device.warm_up(device.job.schedules[0])
    return device.minibatch(0)


def _disobeyed(job: Job, recorded: list[Any], hearing: Hearing) -> list[str]:
    """Steps that began before what they need was done, or ended before they began."""
    from odc_engine.devices.run_device import as_block

    program = job.program_of(job.schedules[0])
    asked, had = as_block(recorded)
    held, slack = np.array(job.schedules[0].microbatches), hearing.size(SLACK, LATE)
    if not np.isfinite(asked).all() or (had < asked).any():
        return [f"{job.recipe.sync}: times that are none"]
    wrong, before = [], program.previous_in_lane()
    for i, step in enumerate(program.steps):
        here = step.microbatch < held
        needs = (*step.after, *([before[i]] if before[i] >= 0 else []))
        early = [needed for needed in needs if (asked[i] < had[needed] - slack)[here].any()]
        late = step.meets and (had[i] < asked[i].max() - slack).any()
        if early or late:
            wrong.append(f"{job.recipe.sync}: step {i} ({step.kind}) did not wait for {early or 'all devices'}")
    return wrong
