"""Start a job's ranks as its backend has them: processes or threads."""

import os
from collections.abc import Callable
from typing import Any

from odc_engine.backends.backend import Processes, Threads
from odc_engine.backends.base import Host
from odc_engine.backends.threads.memory import ThreadMemory
from odc_engine.devices.process import ProcessDevice
from odc_engine.devices.thread import ThreadDevice
from odc_engine.job import Job, check_job
from odc_engine.runs import launch, launch_threads
from odc_engine.started import started
from odcsim.schedule import ScheduleFile

Work = Callable[..., None]  # called with a RunDevice, then with `args`


def check(file: ScheduleFile, job: Job) -> None:
    """Raise before anything starts if the job would hang or cannot run here."""
    check_job(file, job)
    if started() is not None and isinstance(job.backend, Processes):
        os.environ.update(job.backend.env(job.use))  # this process is a device, and what follows may touch CUDA
    job.backend.needs(job.use)


def on_devices(job: Job, work: Work, *args: Any) -> int:
    """Call `work(device, *args)` on each rank. Returns 0 if all have succeeded, 2 if one had bad input, else 1."""
    backend, limit = job.backend, job.timeout
    if isinstance(backend, Threads):
        places = backend.places(job.use)
        return launch_threads.run(on_thread, job.devices, limit, job, work, args, places=places)
    assert isinstance(backend, Processes)
    env = backend.env(job.use)
    return launch.run(on_process, job.devices, limit, job, work, args, across=backend.across, env=env)


def on_process(host: Host, job: Job, work: Work, args: tuple[Any, ...]) -> None:
    work(ProcessDevice(job, host.rank, host), *args)


def on_thread(memory: ThreadMemory, job: Job, work: Work, args: tuple[Any, ...]) -> None:
    with ThreadDevice(job, memory) as device:
        work(device, *args)
