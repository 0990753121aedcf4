"""Run a schedule file for real and write the timeline, or compare its gradients with one process."""

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from odc_engine.devices.run_device import Recorded, RunDevice, as_block
from odc_engine.errors import EngineError
from odc_engine.job import Job
from odc_engine.runs import watch
from odc_engine.runs.start import check, on_devices
from odc_engine.started import started
from odcsim import timeline
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.support.outputs import draft
from odcsim.timeline import About, Block, Timeline, padded, shortened


def run(file: ScheduleFile, job: Job, output: str, *, quiet: bool = False) -> int:
    """Run every minibatch of the file on its number of ranks. Rank 0 writes the timeline, after all have succeeded."""
    check(file, job)
    if not (quiet or job.emulate):
        warn_if_busy()
    with draft(Path(output)) as written:
        code = on_devices(job, _perform, file, job, str(written), quiet)
        if code:
            written.unlink(missing_ok=True)
    return code


def _perform(device: RunDevice, file: ScheduleFile, job: Job, output: str, quiet: bool) -> None:
    say = (lambda _: None) if quiet else watch.say
    say(f"device {device.rank} pid {os.getpid()}")
    device.warm_up(_warm_up(file.header.devices))
    found: list[Block] = []
    for number, schedule in enumerate(file.schedules):
        every = device.gathered(device.minibatch(number))
        if every is not None:
            found.append(block_of(number, schedule, job, every))
            say(f"minibatch {number} done")
    if device.rank == 0:
        timeline.write(assembled(file, job, found), output)
    device.meet()
    device.close()


def _warm_up(devices: int) -> Schedule:
    """Run a few tokens on each rank first: the first microbatch pays for FSDP2's set-up and for new memory."""
    return Schedule.of((8,) * devices, tuple(((device,),) for device in range(devices)))


def block_of(number: int, schedule: Schedule, job: Job, every: list[Recorded]) -> Block:
    """Return one minibatch as its ranks recorded it, with a program as long as they needed."""
    takers = _takers(number, schedule, every)
    counts = schedule.realised(takers).microbatches
    asked, had = as_block(every)
    numbers, ran = np.array([number]), np.array([counts], dtype=np.int64)
    found = Block(job.program_of(schedule), numbers, ran, asked[:, None], had[:, None])
    if schedule.queue:
        found = replace(found, takers=padded([takers]))
    return shortened(found, job.program(max(counts)))


def _takers(number: int, schedule: Schedule, every: list[Recorded]) -> list[int]:
    """Return the rank that ran each entry of the queue."""
    pairs = sorted((entry, device) for device, recorded in enumerate(every) for entry in recorded.taken)
    if [entry for entry, _ in pairs] != list(range(len(schedule.queue))):
        told = f"of the {len(schedule.queue)} entries of its queue devices ran {[entry for entry, _ in pairs]}"
        raise EngineError(f"minibatch {number}: {told}: do not trust the memory that devices share")
    return [device for _, device in pairs]


def assembled(file: ScheduleFile, job: Job, found: list[Block]) -> Timeline:
    """Return the timeline of recorded minibatches, in blocks that share a program."""
    alike: dict[tuple[int, bool], list[Block]] = {}
    for block in found:
        alike.setdefault((block.program.microbatches, block.takers is not None), []).append(block)
    blocks = tuple(_joined(alike[key]) for key in sorted(alike))
    lengths = [s.lengths for s in file.schedules]
    samples, tokens = np.array([len(x) for x in lengths]), np.array([sum(x) for x in lengths])
    return Timeline(_about(file, job), blocks, samples, tokens)


def _joined(blocks: list[Block]) -> Block:
    """Join blocks of one program."""
    takers = [block.takers[0].tolist() for block in blocks if block.takers is not None]
    return Block(
        blocks[0].program,
        np.concatenate([block.minibatches for block in blocks]),
        np.concatenate([block.counts for block in blocks]),
        np.concatenate([block.asked for block in blocks], axis=1),
        np.concatenate([block.had for block in blocks], axis=1),
        padded(takers) if takers else None,
    )


def _about(file: ScheduleFile, job: Job) -> About:
    return About(
        executor="engine",
        recipe=job.recipe,
        balancer=file.header.balancer,
        model=file.header.model,
        digest=file.header.digest,
        fidelity="measured",
        hardware=f"{hardware(job)}; backend {job.backend.name}, {job.recipe.accumulate}",
        emulated=job.emulate,
        devices=file.header.devices,
        max_tokens=file.header.max_tokens,
        trace=file.header.trace,
        nodes=job.cost.cluster.gpus // job.cost.holders,
    )


def hardware(job: Job | None = None) -> str:
    """Describe the job's GPUs, the processor, and how many cores this process may use."""
    if job is not None:
        return with_gpus(job.backend.hardware(job.use))
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def with_gpus(gpus: str) -> str:
    """Describe GPUs, if any, and the processor."""
    return f"{gpus}; {hardware()}" if gpus else hardware()


def warn_if_busy() -> None:
    """Warn if other programs use the cores whose times are to be measured.

    Of processes that torchrun or srun started, only the first warns.
    """
    if (place := started()) is not None and place.rank:
        return
    cores, (load, *_) = os.cpu_count() or 1, os.getloadavg()
    if load > cores / 2:
        told = f"the machine is busy (load {load:.1f} on {cores} cores): times will be longer than on a quiet one"
        print(f"odc_engine: {told}", file=sys.stderr, flush=True)


def first(file: ScheduleFile, minibatches: int) -> ScheduleFile:
    """Return the file's first minibatches, with a digest of their own."""
    return replace(file, schedules=file.schedules[:minibatches]).sealed()
