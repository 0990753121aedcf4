"""What the model says of the schedules that docs/validate.py runs, with every term and with one left out at a time."""

from dataclasses import dataclass, replace

import numpy as np

from odcsim.cost import Cost
from odcsim.metrics import usage
from odcsim.profile import TRANSFERS, Profile
from odcsim.schedule import ScheduleFile
from odcsim.simulation import Simulation, simulate
from odcsim.timeline import Floats

DRAWS = 16  # of a machine whose speed swings: what is predicted is their mean


@dataclass(frozen=True, slots=True)
class Guess:
    """Of every minibatch."""

    makespan: Floats
    idle: Floats  # a fraction


def guess(cost: Cost, file: ScheduleFile, sync: str) -> Guess:
    draws = range(DRAWS if cost.cluster.swing else 1)
    every = [usage(simulate(file, Simulation(cost, sync, seed=seed))) for seed in draws]
    idle = [1 - one.compute / one.makespan / cost.cluster.devices for one in every]
    return Guess(np.mean([one.makespan for one in every], axis=0), np.mean(idle, axis=0))


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
