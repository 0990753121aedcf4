"""The smallest model and a few samples: what proves a way to compute and to move bytes, in seconds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from odc_engine.job import Job, job_of
from odcsim.schedule import Header, Schedule, ScheduleFile

MODEL = "nano"
SYNCS = ("on-demand", "collective", "deferred")
UNEVEN, ALIKE = (3, 0, 1, 2), (2, 2, 2, 2)  # microbatches of each device


def counts(sync: str, devices: int) -> tuple[int, ...]:
    """As uneven as a sync can take them."""
    return (UNEVEN if sync == "on-demand" and devices > 1 else ALIKE)[:devices]


def minibatch(counts: Sequence[int], queue: int = 0) -> Schedule:
    """One sample in each microbatch, of 2 to 13 tokens, and so many that wait in a queue."""
    numbers = iter(range(sum(counts) + queue))
    devices = tuple(tuple((next(numbers),) for _ in range(n)) for n in counts)
    waiting = tuple((next(numbers),) for _ in range(queue))
    return Schedule(tuple(2 + 7 * i % 12 for i in range(sum(counts) + queue)), devices, queue=waiting)


def file_of(*schedules: Schedule) -> ScheduleFile:
    header = Header("native", MODEL, "", 64, len(schedules[0].devices), 0)
    numbered = (replace(s, samples=tuple(100 * n + i for i in range(len(s.lengths)))) for n, s in enumerate(schedules))
    return ScheduleFile(header, tuple(numbered)).sealed()


def job_for(sync: str, devices: int, *, minibatches: int = 1, **options: Any) -> tuple[ScheduleFile, Job]:
    file = file_of(*[minibatch(counts(sync, devices))] * minibatches)
    return file, job_of(file, sync=sync, **options)
