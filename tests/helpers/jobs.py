"""Schedule files, profiles and jobs of the smallest model, for tests."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from odc_engine.job import Job, job_of
from odcsim import profile, schedule
from odcsim.profile import Polynomial, Profile
from odcsim.schedule import Header, Schedule, ScheduleFile

# Seconds that emulated compute waits: long beside what the engine itself takes, and unlike for each sample.
TERMS = Polynomial(0.004, 1e-4), Polynomial(0.006, 2e-4), Polynomial(0.003, 1e-4), Polynomial(0.001)
SECONDS = Profile("nano", "none", "calibrated", "written by hand", *TERMS)


def minibatch(*counts: int, first: int = 0) -> Schedule:
    """One sample in each microbatch, of 2 to 13 tokens."""
    lengths = tuple(2 + 7 * (first + i) % 12 for i in range(sum(counts)))
    numbers = iter(range(sum(counts)))
    devices = tuple(tuple((next(numbers),) for _ in range(n)) for n in counts)
    return Schedule.of(lengths, devices, tuple(range(first, first + len(lengths))))


def file_of(*minibatches: tuple[int, ...]) -> ScheduleFile:
    schedules = tuple(minibatch(*counts, first=100 * i) for i, counts in enumerate(minibatches))
    return ScheduleFile(Header("native", "nano", "", 64, len(minibatches[0]), 0), schedules).sealed()


def job_for(file: ScheduleFile, sync: str = "on-demand", backend: str = "shm", *, emulate: bool = False, **more) -> Job:
    job = job_of(file, sync=sync, backend=backend, timeout=30.0, **more)
    return replace(job, emulate=emulate, cost=replace(job.cost, profile=SECONDS)) if emulate else job


def torchrun(folder: Path, *arguments: str, warnings: str = "error") -> "subprocess.CompletedProcess[str]":
    """What torchrun does with a program, in a folder, on devices of one thread each."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
    env = os.environ | {"PYTHONWARNINGS": warnings, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


def written(folder: Path, *minibatches: tuple[int, ...]) -> tuple[str, str]:
    """Paths of a schedule file and of a profile."""
    schedule.write(file_of(*minibatches), folder / "schedule.jsonl")
    profile.write(SECONDS, folder / "profile.json")
    return str(folder / "schedule.jsonl"), str(folder / "profile.json")
