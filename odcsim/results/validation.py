"""A prediction held against real runs of the same schedule: makespans, idle, finish times and seconds by kind of span.

Errors are signed, predicted over measured: above zero the prediction is too long. Medians, 90th percentiles and worst
cases are of absolute values. Several runs of one schedule show how much of an error is noise.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.program import EVERY
from odcsim.recipe import CHOICES
from odcsim.results.metrics import PARTS, delays, usage
from odcsim.timeline import About, Floats, Timeline

NAMED = 3  # worst minibatches that are named
SHORTEST = 5e-3  # seconds of an emulated minibatch below which a wait's own error is what one would measure
MOVED = ("gather", "bring", "push", "sum")  # by hierarchical transfers into a node, and summed over nodes, too
KINDS = ("embed", "forward", "head", "backward", "overhead", *MOVED, "optimizer", "publish", "meeting")
SAME = "predict and run the same schedule file"
FIXES = {"digest": SAME, "devices": SAME, "nodes": "predict and run with the same --devices-per-node"}


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of many values in short: the signed mean, and three of absolute values."""

    mean: float
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True)
class Kind:
    """Seconds of one kind of span, all devices and minibatches together, waiting for others left out."""

    kind: str
    predicted_seconds: float
    measured_seconds: float
    error: float | None  # of the sums; None where nothing was measured
    error_points: float  # the difference as percentage points of measured device time
    errors: Errors | None  # of minibatches


@dataclass(frozen=True, slots=True)
class MinibatchErrors:
    """One minibatch: its makespan as predicted and as the median of the runs."""

    minibatch: int
    predicted_seconds: float
    measured_seconds: float
    error: float
    noise: float | None  # the widest gap between two runs, over their median
    idle_error_points: float
    finish_error: float  # of the device furthest off (with a queue: of the place in their order), over the makespan
    furthest: str  # the kind whose seconds differ most
    furthest_seconds: float


@dataclass(frozen=True, slots=True)
class Validation:
    predicted: About
    measured: About
    runs: int
    makespan: Errors
    makespan_total: float  # error of the sum over minibatches
    noise: Errors | None  # of one run taken as the prediction of another
    finish: Errors  # when each device was done with its work, over the measured makespan
    idle_predicted: dict[str, float]  # parts, as fractions of device time
    idle_measured: dict[str, float]
    queued: int  # entries of shared queues, all minibatches together
    same_taker: float | None  # share of them that the predicted device ran; None without queues
    kinds: tuple[Kind, ...]
    minibatches: tuple[MinibatchErrors, ...]

    @property
    def idle_error(self) -> float:
        """In percentage points, signed."""
        return 100 * (sum(self.idle_predicted.values()) - sum(self.idle_measured.values()))

    @property
    def executor_check(self) -> bool:
        """Whether compute was a wait: such a run tells how a schedule is executed, not how long compute takes."""
        return self.measured.emulated

    def worst(self, count: int = NAMED) -> list[MinibatchErrors]:
        return sorted(self.minibatches, key=lambda m: -abs(m.error))[:count]

    def as_json(self) -> dict[str, Any]:
        noise = asdict(self.noise) if self.noise else dict.fromkeys(("mean", "median", "p90", "worst"))
        parts = {p: 100 * (self.idle_predicted[p] - self.idle_measured[p]) for p in PARTS}
        ran, sides = self.measured, {"predicted": self.predicted, "measured": self.measured}
        return {
            "schema": 1,
            "digest": ran.digest,
            "sync": ran.recipe.sync,
            **{name: getattr(ran, name) for name in ("balancer", "model", "devices")},
            "recompute": ran.recipe.recomputes,
            "executor_check": self.executor_check,
            "runs": self.runs,
            **{side: {k: getattr(a, k) for k in ("executor", "fidelity", "hardware")} for side, a in sides.items()},
            **{f"makespan_error_{k}": v for k, v in asdict(self.makespan).items()},
            "makespan_error_total": self.makespan_total,
            **{f"noise_{k}": v for k, v in noise.items() if k != "mean"},
            "idle_error_points": abs(self.idle_error),
            "idle_error_points_signed": self.idle_error,
            "idle_predicted": sum(self.idle_predicted.values()),
            "idle_measured": sum(self.idle_measured.values()),
            "idle_parts_error_points": parts,
            **{f"finish_error_{k}": v for k, v in asdict(self.finish).items()},
            "queue_entries": self.queued,
            "queue_same_taker": self.same_taker,
            "kinds": [asdict(kind) for kind in self.kinds],
            "minibatches": [asdict(minibatch) for minibatch in self.minibatches],
        }


def refuse(predicted: Timeline, measured: Timeline, where: str) -> None:
    """Refuse a run that is not the predicted one, and what would give a number that means nothing."""
    one, other = predicted.about, measured.about
    if one.executor == "engine" and other.executor != "engine":
        raise InputError("the prediction was measured and the measurement simulated", fix="swap the two files")
    for name in ("digest", "devices", *other.recipe.differs(one.recipe), "nodes"):
        mine, its = (getattr(a, name) if name in FIXES else a.recipe.value(name) for a in (one, other))
        if name in FIXES and mine == its:
            continue
        if isinstance(its, bool):
            ran, meant = (f"with{'' if value else 'out'} {name}" for value in (its, mine))
            usual = its == CHOICES[name].usual
            fix = f"leave {CHOICES[name].flag} out of the prediction" if usual else f"predict with {CHOICES[name].flag}"
            raise InputError(f"run {ran}, predicted {meant}", where=where, fix=fix)
        fix = FIXES.get(name) or f"predict with {name if CHOICES[name].hidden else CHOICES[name].flag} {its}"
        called = "schedule digest" if name == "digest" else name
        raise InputError(f"{called} {its} is not the prediction's {mine}", where=where, fix=fix)
    if not len(measured.samples) or not np.array_equal(predicted.samples, measured.samples):
        raise InputError("minibatches hold other samples than the prediction's", where=where, fix=SAME)
    shortest = min(float(usage(line).makespan.min()) for line in (predicted, measured))
    if shortest <= 0:
        raise InputError("a minibatch takes no time", where=where, fix="a profile must give seconds to compute")
    if other.emulated and other.executor == "engine" and shortest < SHORTEST:
        seconds = f"an emulated minibatch takes {1e3 * shortest:.1f} ms, under {1e3 * SHORTEST:.0f}"
        raise InputError(seconds, where=where, fix="emulate longer samples: waiting is not that exact")


def validate(predicted: Timeline, measured: Sequence[Timeline]) -> Validation:
    """One prediction against one or more runs of the same schedule under the same sync."""
    if not measured:
        raise InputError("nothing measured to compare with", fix="give at least one timeline of 'odc_engine run'")
    for number, run in enumerate(measured, 1):
        refuse(predicted, run, f"measured timeline {number}" if len(measured) > 1 else "measured timeline")
    for name in ("executor", "hardware", "emulated"):
        if len(values := {str(getattr(run.about, name)) for run in measured}) > 1:
            listed = " and ".join(sorted(values))
            raise InputError(f"runs differ in {name}: {listed}", fix="give repeats of one run; validate others apart")
    guess, runs = usage(predicted), [usage(run) for run in measured]
    spans = np.array([run.makespan for run in runs])
    truth: Floats = np.median(spans, axis=0)
    errors = guess.makespan / truth - 1
    noise = [one / other - 1 for one, other in permutations(spans, 2)]  # each run as the prediction of each other one
    finish = (_finishes(predicted) - np.median([_finishes(run) for run in measured], axis=0)) / truth[:, None]
    busy = [used.compute / (predicted.about.devices * used.makespan) for used in (guess, *runs)]
    idle = 100 * (np.median(busy[1:], axis=0) - busy[0])
    same = [each for run in measured for each in _same_taker(predicted, run)]
    kinds, differences = _kinds(predicted, measured, float(truth.sum()))
    furthest = [max(differences, key=lambda kind: abs(differences[kind][b])) for b in range(len(truth))]
    minibatches = [
        MinibatchErrors(
            minibatch=b,
            predicted_seconds=float(guess.makespan[b]),
            measured_seconds=float(truth[b]),
            error=float(errors[b]),
            noise=float(np.ptp(spans[:, b]) / truth[b]) if noise else None,
            idle_error_points=float(idle[b]),
            finish_error=float(finish[b, np.argmax(np.abs(finish[b]))]),
            furthest=kind,
            furthest_seconds=float(differences[kind][b]),
        )
        for b, kind in enumerate(furthest)
    ]
    return Validation(
        predicted.about,
        measured[0].about,
        len(measured),
        makespan=_errors(errors),
        makespan_total=float(guess.makespan.sum() / truth.sum() - 1),
        noise=_errors(np.array(noise)) if noise else None,
        finish=_errors(finish),
        idle_predicted=guess.idle_parts(),
        idle_measured={part: float(np.mean([run.idle_parts()[part] for run in runs])) for part in PARTS},
        queued=len(same) // len(measured),
        same_taker=sum(same) / len(same) if same else None,
        kinds=tuple(kinds),
        minibatches=tuple(minibatches),
    )


def _errors(values: Floats) -> Errors:
    size = np.abs(values)
    return Errors(float(values.mean()), float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max()))


def _finishes(timeline: Timeline) -> Floats:
    """When each device was done with its work and came to the meeting at the end [minibatch, device].

    Of a minibatch with a shared queue, who was done first, second and so on: which device takes an entry hangs on
    moments, so none has a share that it could be held against, and all end within an entry of each other.
    """
    ends = np.zeros((len(timeline.samples), timeline.about.devices))
    for block in timeline.blocks:
        steps = block.program.steps
        ended = block.asked[next(i for i, s in enumerate(steps) if s.kind == "meeting" and s.microbatch == EVERY)]
        ends[block.minibatches] = ended if block.takers is None else np.sort(ended, axis=1)
    return ends


def _same_taker(predicted: Timeline, measured: Timeline) -> list[bool]:
    """Of each entry of the shared queues, whether the device that ran it is the predicted one."""
    same: list[bool] = []
    for number in range(len(measured.samples)):
        (one, i), (other, j) = predicted.block_of(number), measured.block_of(number)
        if one.takers is not None and other.takers is not None:
            mine, its = (row[row >= 0] for row in (one.takers[i], other.takers[j]))
            same += (mine == its).tolist()
    return same


def _seconds(timeline: Timeline) -> dict[str, Floats]:
    """Seconds of each kind in each minibatch, summed over devices; of a meeting, from when its last device came."""
    sums = {kind: np.zeros(len(timeline.samples)) for kind in KINDS}
    for block in timeline.blocks:
        late = delays(block)
        for i, step in enumerate(block.program.steps):
            what = block.program.durations[step.duration][0].split()[0]
            sums[what][block.minibatches] += block.seconds(i).sum(axis=1)
            if i in late:
                sums["overhead"][block.minibatches] += late[i].sum(axis=1)
    return sums


def _kinds(predicted: Timeline, measured: Sequence[Timeline], makespan: float) -> tuple[list[Kind], dict[str, Floats]]:
    """The table by kind, and per kind the difference of every minibatch, summed over devices."""
    guess, runs = _seconds(predicted), [_seconds(run) for run in measured]
    kinds, differences = [], {}
    for kind in KINDS:
        mine, its = guess[kind], np.median([run[kind] for run in runs], axis=0)
        if not (mine.any() or its.any()):
            continue
        differences[kind] = mine - its
        error = float(mine.sum() / its.sum() - 1) if its.any() else None
        each = _errors(mine[its > 0] / its[its > 0] - 1) if its.any() else None
        points = float(100 * (mine - its).sum() / (predicted.about.devices * makespan))
        kinds.append(Kind(kind, float(mine.sum()), float(its.sum()), error, points, each))
    return kinds, differences
