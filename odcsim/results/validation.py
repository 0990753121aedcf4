"""A prediction held against real runs of the same schedule: makespans, idle, finish times and seconds by kind of span.

Errors are signed, predicted over measured: above zero the prediction is too long. Medians, 90th percentiles and worst
cases are of absolute values. Several runs of one schedule show how much of an error is noise.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.results import traits
from odcsim.results.metrics import PARTS, usage
from odcsim.results.pairs import refuse
from odcsim.timeline import About, Floats, Timeline

NAMED = 3  # worst minibatches that are named


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
    finish_error: (
        float  # of the device (with a queue: the place in their order) that is furthest off, over the makespan
    )
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
        return {
            "schema": 1,
            "digest": self.measured.digest,
            "sync": self.measured.recipe.sync,
            "balancer": self.measured.balancer,
            "model": self.measured.model,
            "devices": self.measured.devices,
            "recompute": self.measured.recipe.recomputes,
            "executor_check": self.executor_check,
            "runs": self.runs,
            "predicted": {k: getattr(self.predicted, k) for k in ("executor", "fidelity", "hardware")},
            "measured": {k: getattr(self.measured, k) for k in ("executor", "fidelity", "hardware")},
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


def validate(predicted: Timeline, measured: Sequence[Timeline]) -> Validation:
    """One prediction against one or more runs of the same schedule under the same sync."""
    if not measured:
        raise InputError("nothing measured to compare with", fix="give at least one timeline of 'odc_engine run'")
    for number, run in enumerate(measured):
        refuse(predicted, run, f"measured timeline {number + 1}" if len(measured) > 1 else "measured timeline")
    for name in ("executor", "hardware", "emulated"):
        if len(values := {str(getattr(run.about, name)) for run in measured}) > 1:
            listed = " and ".join(sorted(values))
            raise InputError(f"runs differ in {name}: {listed}", fix="give repeats of one run; validate others apart")
    guess, runs = usage(predicted), [usage(run) for run in measured]
    spans = np.array([run.makespan for run in runs])
    truth: Floats = np.median(spans, axis=0)
    finish = (traits.finishes(predicted) - np.median([traits.finishes(run) for run in measured], axis=0)) / truth[
        :, None
    ]
    kinds, differences = _kinds(predicted, measured, truth)
    idle = 100 * (traits.idle(guess) - np.median([traits.idle(run) for run in runs], axis=0))
    same = np.concatenate([traits.same_taker(predicted, run) for run in measured])
    return Validation(
        predicted.about,
        measured[0].about,
        len(measured),
        makespan=_errors(guess.makespan / truth - 1),
        makespan_total=float(guess.makespan.sum() / truth.sum() - 1),
        noise=_noise(spans),
        finish=_errors(finish),
        idle_predicted=guess.idle_parts(),
        idle_measured=_mean([run.idle_parts() for run in runs]),
        queued=len(same) // len(measured),
        same_taker=float(same.mean()) if len(same) else None,
        kinds=kinds,
        minibatches=_minibatches(guess.makespan, spans, idle, finish, differences),
    )


def _minibatches(
    guess: Floats, spans: Floats, idle: Floats, finish: Floats, differences: dict[str, Floats]
) -> tuple[MinibatchErrors, ...]:
    truth = np.median(spans, axis=0)
    minibatches = []
    for b, seconds in enumerate(truth.tolist()):
        kind = max(differences, key=lambda name: abs(differences[name][b]))
        minibatches.append(
            MinibatchErrors(
                minibatch=b,
                predicted_seconds=float(guess[b]),
                measured_seconds=seconds,
                error=float(guess[b]) / seconds - 1,
                noise=float(np.ptp(spans[:, b])) / seconds if len(spans) > 1 else None,
                idle_error_points=float(idle[b]),
                finish_error=float(finish[b, np.argmax(np.abs(finish[b]))]),
                furthest=kind,
                furthest_seconds=float(differences[kind][b]),
            )
        )
    return tuple(minibatches)


def _errors(values: Floats) -> Errors:
    size = np.abs(values)
    return Errors(float(values.mean()), float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max()))


def _noise(spans: Floats) -> Errors | None:
    """What the errors would be if each run were the prediction of each other one."""
    runs = range(len(spans))
    pairs = [spans[i] / spans[j] - 1 for i in runs for j in runs if i != j]
    return _errors(np.array(pairs)) if pairs else None


def _mean(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in parts])) for name in parts[0]}


def _kinds(
    predicted: Timeline, measured: Sequence[Timeline], makespans: Floats
) -> tuple[tuple[Kind, ...], dict[str, Floats]]:
    """The table by kind, and per kind the difference of every minibatch, summed over devices."""
    guess, runs = traits.seconds(predicted), [traits.seconds(run) for run in measured]
    device_time = predicted.about.devices * makespans.sum()
    kinds, differences = [], {}
    for kind in traits.KINDS:
        mine, its = guess[kind], np.median([run[kind] for run in runs], axis=0)
        if not (mine.any() or its.any()):
            continue
        differences[kind] = mine - its
        error = float(mine.sum() / its.sum() - 1) if its.any() else None
        each = _errors(mine[its > 0] / its[its > 0] - 1) if its.any() else None
        points = float(100 * (mine - its).sum() / device_time)
        kinds.append(Kind(kind, float(mine.sum()), float(its.sum()), error, points, each))
    return tuple(kinds), differences
