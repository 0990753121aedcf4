"""Runs a schedule file for real and writes the timeline, or holds its gradients against one process."""

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from odc_engine import launch, launch_threads
from odc_engine.backends.cuda_ipc import refuse_without_gpus
from odc_engine.backends.shm import SharedMemory
from odc_engine.backends.threads import ThreadMemory
from odc_engine.thin import Thin
from odc_engine.worker import Device, Job, Member, as_block
from odcsim import timeline
from odcsim.errors import InputError, nearest
from odcsim.program import check_counts
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.timeline import About, Block, Timeline

BACKENDS = ("shm", "threads", "torch", "cuda_ipc")


def run(file: ScheduleFile, job: Job, output: str, *, quiet: bool = False) -> int:
    """Every minibatch of the file, on as many devices as it names. Device 0 writes the timeline."""
    check(file, job)
    if job.backend == "threads":
        return launch_threads.run(_run_thread, file.header.devices, job.timeout, file, job, output, quiet)
    return launch.run(_run_device, file.header.devices, job.timeout, file, job, output, quiet)


def check(file: ScheduleFile, job: Job) -> None:
    """Refuse before anything starts what would hang or cannot run."""
    if job.backend not in BACKENDS:
        raise InputError(f"unknown backend '{job.backend}'", fix=nearest(job.backend, list(BACKENDS)))
    if job.backend == "threads":
        launch_threads.refuse_torchrun()
    if job.backend == "torch" and job.sync == "on-demand":
        raise InputError(
            "backend torch has collectives only", fix="use --backend shm, or --sync collective or deferred"
        )
    if job.backend == "cuda_ipc":
        if job.emulate:
            raise InputError("a GPU does not wait instead of computing", fix="emulate with --backend shm or threads")
        refuse_without_gpus()
    for number, schedule in enumerate(file.schedules):
        check_counts(job.sync, schedule.microbatches, len(schedule.queue), where=f"minibatch {number}")
        if schedule.queue:
            raise InputError(
                f"{len(schedule.queue)} microbatches wait in a shared queue, which the engine cannot run yet",
                where=f"minibatch {number}",
                fix="simulate it, or use a balancer without a queue (lb-robust)",
            )


def _run_device(memory: SharedMemory, file: ScheduleFile, job: Job, output: str, quiet: bool) -> None:
    _perform(Device(job, memory.rank, memory), file, job, output, quiet)


def _run_thread(memory: ThreadMemory, file: ScheduleFile, job: Job, output: str, quiet: bool) -> None:
    with Thin(job, memory) as device:
        _perform(device, file, job, output, quiet)


def _perform(device: Member, file: ScheduleFile, job: Job, output: str, quiet: bool) -> None:
    say = (lambda _: None) if quiet else launch.say
    say(f"device {device.rank} pid {os.getpid()}")
    device.warm_up(_warm_up(file.header.devices))
    found: list[_Minibatch] = []
    for number, schedule in enumerate(file.schedules):
        every = device.gathered(device.minibatch(number))
        if every is not None:
            found.append(_Minibatch(number, max(schedule.microbatches), schedule.microbatches, *as_block(every)))
            say(f"minibatch {number} done")
    if device.rank == 0:
        timeline.write(assembled(file, job, found), output)
    device.meet()
    device.close()


def _warm_up(devices: int) -> Schedule:
    """A few tokens for each device: the first microbatch pays for FSDP2's setting up and for fresh memory."""
    return Schedule((8,) * devices, tuple(((device,),) for device in range(devices)))


@dataclass(frozen=True, slots=True)
class _Minibatch:
    number: int
    most: int
    counts: tuple[int, ...]
    asked: timeline.Floats
    had: timeline.Floats


def assembled(file: ScheduleFile, job: Job, found: list[_Minibatch]) -> Timeline:
    """A timeline of recorded minibatches, in blocks of those that share a program."""
    blocks = []
    for most in sorted({m.most for m in found}):
        alike = [m for m in found if m.most == most]
        blocks.append(
            Block(
                job.program_of(file.schedules[alike[0].number]),
                np.array([m.number for m in alike], dtype=np.int64),
                np.array([m.counts for m in alike], dtype=np.int64),
                np.stack([m.asked for m in alike], axis=1),
                np.stack([m.had for m in alike], axis=1),
            )
        )
    lengths = [s.lengths for s in file.schedules]
    samples, tokens = np.array([len(x) for x in lengths]), np.array([sum(x) for x in lengths])
    return Timeline(_about(file, job), tuple(blocks), samples, tokens)


def _about(file: ScheduleFile, job: Job) -> About:
    return About(
        executor="engine",
        sync=job.sync,
        balancer=file.header.balancer,
        model=file.header.model,
        digest=file.header.digest,
        fidelity="measured",
        hardware=f"{hardware()}; backend {job.backend}, {job.accumulate}",
        emulated=job.emulate,
        prefetch=job.prefetch,
        devices=file.header.devices,
        max_tokens=file.header.max_tokens,
        trace=file.header.trace,
    )


def hardware() -> str:
    """The processor's name and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def first(file: ScheduleFile, minibatches: int) -> ScheduleFile:
    """The file's first minibatches, under the digest of what is left."""
    return replace(file, schedules=file.schedules[:minibatches]).sealed()
