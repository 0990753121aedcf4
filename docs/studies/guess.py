"""What the model says of the schedules that validate.py runs, with every term and with one left out at a time."""

import zlib
from dataclasses import dataclass, replace

import numpy as np

from odcsim.cost import Cost
from odcsim.executors.simulation import usage
from odcsim.profile import TRANSFERS, Profile
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.timeline import Floats

DRAWS = 16  # of a machine whose speed swings: what is predicted is their median, as it is of runs


@dataclass(frozen=True, slots=True)
class Guess:
    """Of every minibatch."""

    makespan: Floats
    idle: Floats  # a fraction


def guess(cost: Cost, file: ScheduleFile, sync: str) -> Guess:
    every = [_alone(cost, schedule, sync) for schedule in file.schedules]
    makespan, idle = np.array(every).T
    return Guess(makespan, idle)


def _alone(cost: Cost, schedule: Schedule, sync: str) -> tuple[float, float]:
    """One minibatch. All that runs the same samples has the same luck, so that luck says nothing on which is faster."""
    first = zlib.crc32(np.array(schedule.lengths).tobytes()) * DRAWS
    draws = range(first, first + (DRAWS if cost.cluster.swing else 1))
    every = [usage([schedule], cost.by(sync=sync), seed=seed) for seed in draws]
    idle = [1 - one.compute[0] / one.makespan[0] / cost.cluster.gpus for one in every]
    return float(np.median([one.makespan[0] for one in every])), float(np.median(idle))


def without(cost: Cost) -> dict[str, Cost]:
    """The model with one term left out at a time."""
    used = cost.profile

    def dropped(*kinds: str) -> Profile:
        return replace(
            used, timings=tuple(replace(t, constant=0.0, per_byte=0.0) if t.kind in kinds else t for t in used.timings)
        )

    alike = {name: replace(getattr(used, name), sample=0.0) for name in ("forward", "backward", "head", "embed")}
    squares = {name: replace(getattr(used, name), quadratic=0.0) for name in ("forward", "backward")}
    profiles = {
        "work between steps": dropped("overhead"),
        "a constant for each sample": replace(used, **alike),
        "squares of lengths": replace(used, **squares),
        "transfers": dropped(*TRANSFERS),
        "transfers slowed by compute": replace(used, timings=tuple(replace(t, slowdown=1.0) for t in used.timings)),
        "optimizer, publishing, meetings": dropped("optimizer", "publish", "meeting"),
    }
    found = {name: replace(cost, profile=profile) for name, profile in profiles.items()}
    return found | {"swings of a device's speed": replace(cost, cluster=replace(cost.cluster, swing=0.0))}
