"""Rivals on the same samples: schedules for each, runs in turn, and what lies beside what in them.

A GPU's clocks and its allocator's memory drift over runs, and the first run of a process pays for much. So a run of
each goes first and is thrown away, the order turns from round to round, nobody inherits another's memory, and medians
count.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odc_engine import backends
from odc_engine.backends.backend import Backend
from odc_engine.job import Job
from odcsim import balance, catalog, schedule, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.profile import Profile
from odcsim.program import sync_named
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.timeline import Block, Timeline

REPEATS = 3
SEED = 20260
BACKWARD = ("backward", "embed backward")


@dataclass(frozen=True, slots=True)
class Contest:
    """Samples like LongAlign's, scaled down so that `longest` is the longest; or all of a quarter of it."""

    model: str
    devices: int
    longest: int
    minibatch: int  # samples of a device
    minibatches: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Rival:
    """What is run, and the kept profile that predicts it."""

    sync: str
    balancer: str
    backend: Backend
    known: str = "profile.json"
    best: bool = False  # layers stay whole from forward to backward; over NCCL copy engines gather, too

    @property
    def name(self) -> str:
        return f"{self.sync} + {self.balancer}, {backends.label(self.backend)}{', at its best' if self.best else ''}"

    @property
    def choices(self) -> dict[str, Any]:
        """Of the recipe."""
        engines = {"copies": "engines"} if not self.backend.one_sided else {}
        return {"sync": self.sync} | ({"reshard": False, **engines} if self.best else {})

    @property
    def stem(self) -> str:
        """What its files begin with, behind the kind of lengths."""
        label = backends.label(self.backend).replace(" ", "-")
        return f"{'best-' if self.best else ''}{self.sync}-{self.balancer}-{label}"


def one_sided(rivals: Sequence[Rival]) -> Rival:
    """The one that the others are held against."""
    [found] = [rival for rival in rivals if not sync_named(rival.sync).meets]
    return found


def cost_of(contest: Contest, known: Profile) -> Cost:
    devices = contest.devices
    return Cost(catalog.model(contest.model), known, Cluster(devices, devices, 1.0, 1.0, devices))


def planned(contest: Contest, cost: Cost, lengths: str, rivals: Sequence[Rival]) -> dict[Rival, ScheduleFile]:
    """The same samples for each rival, by its balancer."""
    files = {}
    minibatches = [(of, cost.sample_seconds(of)) for of in drawn(contest, lengths)]
    for rival in rivals:
        header = Header(rival.balancer, contest.model, "the profile's", contest.longest, contest.devices, SEED)
        schedules = (
            Schedule(tuple(of.tolist()), balance.balance(rival.balancer, of, each, contest.devices, contest.longest))
            for of, each in minibatches
        )
        files[rival] = ScheduleFile(header, tuple(schedules)).sealed()
    return files


def drawn(contest: Contest, lengths: str) -> list[NDArray[np.int64]]:
    count = contest.minibatch * contest.devices
    if lengths == "even":
        return [np.full(count, contest.longest // 4)] * contest.minibatches
    from odcsim import load

    trace = load(lengths)
    found = trace.minibatches(count, contest.minibatches, seed=SEED)
    return [np.maximum(trace.take(ids) * contest.longest // trace.longest, 16) for ids in found]


def turns(rivals: Sequence[Rival], repeats: int = REPEATS) -> Iterator[tuple[Rival, int]]:
    """A run of each that counts for nothing (-1), then as many of each as are asked for, in turning order."""
    for number in range(-1, repeats):
        for rival in rivals if number % 2 else reversed(rivals):
            yield rival, number


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a contest, as files in a folder: those of one kind of lengths."""

    folder: Path
    lengths: str
    files: Mapping[Rival, ScheduleFile]

    def path(self, rival: Rival, number: int) -> Path:
        return self.folder / f"{self.lengths}-{rival.stem}-{number}.npz"

    def schedule(self, rival: Rival) -> Path:
        return self.folder / f"{self.lengths}-{rival.stem}.jsonl"

    def known(self, rival: Rival, number: int) -> bool:
        """Whether there is a run of these very schedules."""
        path = self.path(rival, number)
        return path.exists() and timeline.read(path).about.digest == self.files[rival].header.digest

    def kept(self) -> dict[Rival, list[Timeline]]:
        """What counts, as far as it is there."""
        return {
            rival: [timeline.read(self.path(rival, n)) for n in range(REPEATS) if self.known(rival, n)]
            for rival in self.files
        }

    def run(self, jobs: Mapping[Rival, Job], done: Callable[[Rival, int, float], None]) -> None:
        """Those that are not there. `done` hears of each, with its seconds."""
        for rival, file in self.files.items():
            schedule.write(file, self.schedule(rival))
        if all(self.known(rival, n) for rival in self.files for n in range(REPEATS)):
            return
        for rival, number in turns(list(self.files)):
            if number >= 0 and self.known(rival, number):
                continue
            path = self.path(rival, number)
            forget()
            perform(self.files[rival], jobs[rival], path, rival.name)
            done(rival, number, float(seconds([timeline.read(path)])[0]))
            if number < 0:
                path.unlink()


def perform(file: ScheduleFile, job: Job, path: Path, name: str) -> None:
    """By the file's schedules."""
    from odc_engine.errors import EngineError
    from odc_engine.runs.run import run

    if run(file, replace(job, schedules=file.schedules), str(path), quiet=True):
        raise EngineError(f"a run of {name} failed, see above")


def forget() -> None:
    """Give memory back, so that the next run finds as much as the first."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def seconds(lines: Sequence[Timeline]) -> NDArray[np.float64]:
    """Of all minibatches together, in each run."""
    return np.array([sum(float(block.had.max(axis=(0, 2)).sum()) for block in line.blocks) for line in lines])


def hidden(lines: Sequence[Timeline]) -> tuple[float, float]:
    """The share of the time of layers' pushes that lies beside their device's backward, and all of that time. The
    root's comes after all of it."""
    inside, total = np.sum([_beside(block) for line in lines for block in line.blocks], axis=0)
    return (float(inside / total) if total else 0.0), float(total)


def _beside(block: Block) -> tuple[float, float]:
    """Seconds of layers' pushes beside backward, and of all of them."""
    program = block.program
    named = [program.durations[step.duration][0] for step in program.steps]
    backward = [i for i, what in enumerate(named) if what in BACKWARD]
    pushes = [i for i, step in enumerate(program.steps) if step.kind == "push" and step.unit > 0]
    if not pushes:
        return 0.0, 0.0
    asked, had = block.asked[pushes], block.had[pushes]
    inside = sum(
        np.maximum(np.minimum(had, block.had[i]) - np.maximum(asked, block.asked[i]), 0.0).sum() for i in backward
    )
    return float(inside), float((had - asked).sum())
