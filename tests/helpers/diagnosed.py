"""Diagnoses made by hand: a run of which all figures are known."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from odcsim.decide.diagnosis.outcome import PARTS, Breakdown, Change, Changes, LateMicrobatch, RankFound, StepPart
from odcsim.decide.diagnosis.result import Diagnosis
from odcsim.observed.run import Doing, RanStep, SeenRun, Track

SHARES = {"compute": 0.58, "padding": 0.03, "transfer": 0.02, "lengths": 0.22, "stages": 0.09, "loader": 0.06}


def breakdown(shares: Mapping[str, float], seconds: float = 9.07, steps: int = 12, **more: Any) -> Breakdown:
    parts = tuple(StepPart(name, seconds * (s := shares.get(name, 0.0)), s, 0.9 * s, 1.1 * s) for name in PARTS)
    by_step = {part.name: np.linspace(0.5, 1.5, steps) * part.seconds for part in parts}
    return Breakdown(parts, more.get("ranks", ()), more.get("late", ()), by_step, more.get("cannot", ()))


def track(rank: int, kinds: list[int], edges: list[float]) -> Track:
    none = np.full(len(kinds), -1)
    return Track(rank, np.array(kinds), np.array(edges), none, none)


def seen(ranks: int = 8, steps: int = 12, **more: Any) -> SeenRun:
    kinds = [*map(int, (Doing.EDGE, Doing.LOADER, Doing.COMPUTE, Doing.MEETING, Doing.COMPUTE, Doing.HOST))]
    tracks = tuple(track(r, kinds, [0, 0.1, 0.5, 4 + r / 2, 8, 8.9, 9.07]) for r in range(ranks))
    ran = tuple(RanStep(number, 9.07, (), tracks) for number in range(steps))
    return SeenRun(f"torch.profiler traces of {ranks} ranks", ranks, tuple(range(ranks)), ran, **more)


def way(gain: float, effort: str = "another sampler", **more: Any) -> Change:
    row = {"balancer": "lb-mini", "sync": "collective", "makespan_seconds": 9.07 / gain}
    usual: dict[str, Any] = {"rests": "lengths of 12 steps", "row": row}
    known = usual | more
    name = known.pop("way", "lb-mini under collective")
    return Change(effort, name, gain, gain - 0.05, gain + 0.05, 9.07 / gain, "lb-mini", "collective", 16_384, **known)


def diagnosis(shares: Mapping[str, float] = SHARES, ways: tuple[Change, ...] | None = None, **more: Any) -> Diagnosis:
    ranks = tuple(RankFound(r, 0.6 + r / 100, 0.3 - r / 100, 1.0, 0.1 * r) for r in range(8))
    late = tuple(LateMicrobatch(k, 5 if k < 3 else 1, k, 12_000 - k, 2.1 - k / 10, "lengths") for k in range(6))
    found = breakdown(shares, **{"ranks": ranks, "late": late} | more)
    some = ways if ways is not None else (way(1.21, "a setting"), way(1.34), way(1.41, "another engine"))
    changes = Changes(some, 1.02, "lengths of every sample", {"devices": 8})
    return Diagnosis(seen(), found, changes, ("traces",))


def of_ranks(count: int) -> Diagnosis:
    """A run of many ranks, of which the last one keeps the others."""
    last = count - 1
    ranks = tuple(RankFound(r, 0.5 + 0.4 * (r == last), 0.4 * (r < last), 1.0, float(r)) for r in range(count))
    return replace(diagnosis(ranks=ranks), run=seen(count, 2))
