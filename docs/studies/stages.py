"""The machines that predictions are held against, and the schedules that they run: none that a fit has seen."""

from dataclasses import dataclass

import numpy as np
from mixed import order

from odc_engine.measuring import calibration
from odcsim import balance, catalog, load
from odcsim.cost import Cost
from odcsim.schedule import Header, Schedule, ScheduleFile

TRACES = ("longalign", "swe-smith", "aime-rl")
LONGEST, SHORTEST = 512, 16  # tokens: named traces are scaled down until their longest sample has so many
MINIBATCH = 4  # samples per device
SYNCS = ("collective", "deferred", "on-demand")
DEFERRED = ("lb-micro", "sorted-slice")  # are enough where only the pushes differ from the collective's
KEPT_BY = ("lb-micro", "lb-mini")  # ... and where only the layers' compute differs from that with recompute
SEED = 20260
BETWEEN = 10  # held-out schedules for one round of those that are made to be measured


@dataclass(frozen=True, slots=True)
class Stage:
    """One machine that predictions are held against."""

    name: str
    devices: int
    model: str
    backend: str
    emulate: bool
    drawn: int  # minibatches of each distribution
    repeats: int
    recompute: bool = True
    syncs: tuple[str, ...] = SYNCS
    balancers: tuple[str, ...] = balance.NAMES


STAGES = (
    Stage("real", 2, "tiny", "shm", False, 1, 5),
    Stage("real, without recompute", 2, "tiny", "shm", False, 1, 3, False, ("collective", "on-demand"), KEPT_BY),
    Stage("executor check, 4 devices", 4, "nano", "threads", True, 1, 3),
    Stage("executor check, 8 devices", 8, "nano", "threads", True, 1, 3),
)


def held_out(devices: int, draws: int) -> dict[str, list[np.ndarray]]:
    """Minibatches of three distributions, and pathological ones."""
    count, drawn = MINIBATCH * devices, {}
    for name in TRACES:
        trace = load(name)
        drawn[name] = [
            np.clip(trace.take(ids) * LONGEST // trace.longest, SHORTEST, LONGEST)
            for ids in trace.minibatches(count, draws, seed=SEED)
        ]
    one = np.full(count, 2 * SHORTEST)
    one[count // 2] = LONGEST
    drawn["one long among short"] = [one]
    drawn["all alike"] = [np.full(count, 240)]
    drawn["fewer than devices"] = [np.linspace(200, LONGEST, devices - 1).astype(np.int64)]
    return drawn


def planned(stage: Stage, cost: Cost, sync: str) -> tuple[ScheduleFile, list[tuple[str, int, str]]]:
    """Every minibatch planned by every balancer that suits the sync, in one file: one start of the devices."""
    schedules, cases = [], []
    for name, minibatches in held_out(stage.devices, stage.drawn).items():
        for draw, lengths in enumerate(minibatches):
            for balancer in stage.balancers:
                if not balance.runs_with(balancer, sync) or (sync == "deferred" and balancer not in DEFERRED):
                    continue
                devices = balance.balance(balancer, lengths, cost.sample_seconds(lengths), stage.devices, LONGEST)
                if all(all(device) for device in devices):  # the engine runs no microbatch without samples
                    schedules.append(Schedule.of(lengths.tolist(), devices))
                    cases.append((name, draw, balancer))
    header = Header("several", stage.model, "the profile's", LONGEST, stage.devices, SEED)
    return ScheduleFile(header, tuple(schedules)).sealed(), cases


def with_others(stage: Stage, file: ScheduleFile) -> ScheduleFile:
    """The file, and after its own minibatches some that are made to be measured.

    A host's speed drifts by more than a model's error, within seconds, so its profile is measured at the same time.
    """
    rounds = 0 if stage.emulate else -(-len(file.schedules) // BETWEEN)
    every = list(file.schedules)
    for number in range(rounds):
        every += calibration.mixed(catalog.model(stage.model), stage.devices, LONGEST, SEED + 10 + number).schedules
    return ScheduleFile(file.header, tuple(every)).sealed()


def way(file: ScheduleFile, own: int, number: int) -> list[int]:
    """Which minibatch stands where in a run."""
    return order(own, len(file.schedules), SEED + number)
