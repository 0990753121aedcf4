"""Devices that are processes which share a GPU: gradients of one process, and emulated compute that takes its seconds.
They take turns on it, so that no time means anything by itself. On a CPU, processes over shared memory stand in."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from odc_engine.doctor.probes.base import FAILED, OK, Answer, Hearing
from odc_engine.doctor.probes.small import SYNCS, file_of, job_for, minibatch
from odc_engine.job import Job, job_of
from odcsim.schedule import ScheduleFile

Case = tuple[str, Callable[[], int]]
SLACK = 1e-5


def two(hearing: Hearing) -> Answer:
    return _each(hearing, [_verified(hearing, sync, 2) for sync in SYNCS])


def four(hearing: Hearing) -> Answer:
    """The rest: of four, ways to add up and nodes, too."""
    cases = [_verified(hearing, sync, 4) for sync in SYNCS]
    cases.append(_verified(hearing, "on-demand", 4, accumulate="slots"))
    cases.append(_verified(hearing, "on-demand", 4, sharding="hybrid", devices_per_node=2))
    return _each(hearing, cases)


def queue(hearing: Hearing) -> Answer:
    """Every entry of a queue that processes share is run once, whoever takes it."""
    file = file_of(minibatch((2, 0, 1), queue=5), minibatch((0, 0, 0), queue=2))
    job = job_of(file, sync="on-demand", **_on(hearing))
    return _each(hearing, [("queue", _verifying(file, job))])


def pauses(hearing: Hearing) -> Answer:
    """As a profile needs it, which times transfers beside emulated compute."""
    return _each(hearing, [(sync, partial(_short, hearing, sync)) for sync in SYNCS[:2]])


def rival(hearing: Hearing) -> Answer:
    """FSDP2's own collectives, a GPU for each process."""
    how = {"backend": "torch", "device": hearing.device, "timeout": hearing.patience}
    cases = []
    for sync in ("collective", "deferred"):
        file, job = job_for(sync, 2, minibatches=2, **how)
        cases.append((sync, _verifying(file, job)))
    return _each(hearing, cases)


def near_and_far(hearing: Hearing) -> Answer:
    """NVSHMEM between processes on one GPU: by addresses, and with addresses hidden by its own transfers."""
    from odc_engine.runs import launch

    cases: list[Case] = []
    for way in ("Nvshmem", "Apart"):
        for sync in SYNCS[:2]:
            _, job = job_for(sync, 2, minibatches=2, backend="nvshmem", accumulate="slots", timeout=hearing.patience)
            cases.append((f"{way} {sync}", partial(launch.run, _by, 2, job.timeout, job, way)))
    _, job = job_for("on-demand", 2, backend="nvshmem", timeout=hearing.patience)
    cases.append(("atomic sums", partial(launch.run, _by, 2, job.timeout, job, "Nvshmem")))
    return _each(hearing, cases)


def _by(host: Any, job: Job, way: str) -> None:
    from odc_engine.backends.nvshmem import library
    from odc_engine.doctor.probes.nvshmem_host import ENVIRONMENT
    from odc_engine.runs import start, verify

    class Apart(library.Nvshmem):
        """No peer has an address."""

        def mapped(self, mine: Any, device: int) -> None:  # noqa: ARG002
            return None

    os.environ.update(ENVIRONMENT)
    if way == "Apart":
        library.__dict__["Nvshmem"] = Apart  # what the backend looks up when it is made
    start.on_process(host, job, verify._verify, (False,))


def _on(hearing: Hearing) -> dict[str, Any]:
    return {"backend": hearing.size("cuda_ipc", "shm"), "timeout": hearing.patience}


def _verified(hearing: Hearing, sync: str, devices: int, **options: Any) -> Case:
    file, job = job_for(sync, devices, **_on(hearing), **options)
    return " ".join([sync, str(devices), *map(str, options.values())]), _verifying(file, job)


def _verifying(file: ScheduleFile, job: Job) -> Callable[[], int]:
    from odc_engine.runs.verify import verify

    return partial(verify, file, job, False)


def _each(hearing: Hearing, cases: Sequence[Case]) -> Answer:
    """One that fails stops no other: its devices have said why."""
    codes: dict[str, int] = {}
    for name, case in cases:
        print(f"-- {name}", flush=True)
        codes[name] = case()
        hearing.note(codes=codes)
    wrong = [name for name, code in codes.items() if code]
    if wrong:
        return Answer(FAILED, f"failed: {', '.join(wrong)}")
    return Answer(OK, f"all right: {', '.join(codes)}")


def _short(hearing: Hearing, sync: str) -> int:
    """Not 0 where emulated compute took less than it stands for, or a step has no time."""
    from odc_engine.runs.run import run
    from odcsim import timeline

    file, job = job_for(sync, 2, minibatches=2, emulate=True, gpu="a100", **_on(hearing))
    path = Path(hearing.folder, f"{hearing.name}-{sync}.npz")
    if code := run(file, job, str(path), quiet=True):
        return code
    [block] = timeline.read(path).blocks
    path.unlink()
    seconds, spans = job.cost.durations(block.program, job.cost.load(list(file.schedules))), block.had - block.asked
    short = [
        i
        for i, step in enumerate(block.program.steps)
        if not np.isfinite(spans[i]).all()
        or (spans[i] < 0).any()
        or (step.kind == "compute" and (spans[i] < seconds[step.duration] - SLACK).any())
    ]
    print(f"{sync}: steps that took less: {short}")
    return 1 if short else 0
