"""Runs whose every second has a known cause: ranks that meet after each layer and do nothing beside it.

Leaving a cause out and running again says what it cost, so that a diagnosis can be held against it.
"""

from dataclasses import dataclass, replace

import numpy as np

from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track


@dataclass(frozen=True)
class Known:
    """What makes a run take its time. Arrays by [step, rank], lengths by [step, rank, microbatch]."""

    lengths: np.ndarray
    pace: np.ndarray  # [rank]
    loader: np.ndarray
    collector: np.ndarray
    host: np.ndarray  # before each layer
    bytes: float = 1e-4  # seconds of a meeting once all are there
    jitter: np.ndarray | None = None  # factors of compute [step, rank, microbatch]
    layers: int = 4
    update: float = 0.01

    def without(self, cause: str) -> "Known":
        """The same run without it."""
        even = np.full_like(self.lengths, self.lengths.mean(), dtype=float)
        nothing = {
            "lengths": {"lengths": even},
            "device": {"pace": np.ones_like(self.pace)},
            "loader": {"loader": 0 * self.loader},
            "collector": {"collector": 0 * self.collector},
            "launch": {"host": 0 * self.host},
            "transfer": {"bytes": 0.0},
        }
        return replace(self, **nothing[cause])


def seconds_of(lengths: np.ndarray) -> np.ndarray:
    return 0.02 + 1e-5 * lengths


def run_of_known(known: Known, *, told: str = "lengths", seen: tuple[int, ...] | None = None) -> SeenRun:
    """`told`: how much of the microbatches is known: lengths, kernels, or nothing."""
    steps, ranks, _ = known.lengths.shape
    seen, now = tuple(range(ranks)) if seen is None else seen, np.zeros(ranks)
    found = []
    for number in range(steps):
        rows = [_Pieces(start) for start in now]
        met, ran = _step(known, number, rows, now, told)
        kept = tuple(replace(one, came={r: t for r, t in one.came.items() if r in seen}) for one in met)
        tracks = tuple(rows[rank].track(rank) for rank in seen)
        took = max(track.seconds for track in tracks)
        held = tuple(one for one in ran if one.rank in seen)
        found.append(RanStep(number, took, held, tracks, kept))
    alike = {f"kernel {k}": {r: k * float(known.pace[r]) for r in seen} for k in (1.0, 2.0)}
    rests = {"lengths": "lengths"}.get(told, "seconds")
    return SeenRun("a test", ranks, seen, tuple(found), alike=alike if told == "kernels" else {}, rests=rests)


def _step(
    known: Known, number: int, rows: "list[_Pieces]", now: np.ndarray, told: str
) -> tuple[list[Met], list[RanMicrobatch]]:
    """`now` moves on to when each rank is done."""
    ranks, count = known.lengths.shape[1:]
    met, ran = [], []

    def pass_by(kind: Doing, seconds: np.ndarray | float, microbatch: int = NO) -> None:
        now[:] = now + seconds
        for row, until in zip(rows, now, strict=True):
            row.add(kind, until, NO, microbatch)

    pass_by(Doing.LOADER, known.loader[number])
    pass_by(Doing.COLLECTOR, known.collector[number])
    for m in range(count):
        took = seconds_of(known.lengths[number, :, m]) * known.pace
        took = took if known.jitter is None else took * known.jitter[number, :, m]
        for _ in range(known.layers):
            pass_by(Doing.HOST, known.host[number], m)
            pass_by(Doing.COMPUTE, took / known.layers, m)
            came = now.copy()
            now[:] = came.max() + known.bytes
            for row, until in zip(rows, now, strict=True):
                row.add(Doing.MEETING, until, len(met), m)
            met.append(Met("all-gather", 0, ranks, dict(enumerate(came.tolist())), float(now[0])))
        for r in range(ranks):
            held = (int(known.lengths[number, r, m]),) if told == "lengths" else ()
            ran.append(RanMicrobatch(r, m, float(took[r]), 0.0, held))
    pass_by(Doing.COMPUTE, known.update)
    return met, ran


class _Pieces:
    def __init__(self, begin: float) -> None:
        self.edges, self.does = [float(begin)], []

    def add(self, kind: Doing, until: float, meeting: int, microbatch: int) -> None:
        if until > self.edges[-1]:
            self.edges.append(float(until))
            self.does.append((int(kind), meeting, microbatch))

    def track(self, rank: int) -> Track:
        columns = np.array(self.does, dtype=np.int64).reshape(-1, 3).T
        return Track(rank, columns[0], np.array(self.edges), columns[1], columns[2])


def step_seconds(run: SeenRun) -> float:
    """Of all steps together."""
    first, last = run.steps[0].tracks, run.steps[-1].tracks
    return float(max(t.edges[-1] for t in last) - min(t.edges[0] for t in first))


def drawn(rng: np.random.Generator, causes: set[str], ranks: int, steps: int = 12, count: int = 4) -> Known:
    """With these causes and no other; each costs some percent at least."""
    shape, late = (steps, ranks), rng.integers(ranks, size=steps)
    lengths = np.full((*shape, count), 6000)
    if "lengths" in causes:
        lengths = np.minimum(rng.lognormal(8.3, 0.8, lengths.shape), 30000).astype(int) + 100
    pace = np.ones(ranks)
    if "device" in causes:
        pace[rng.integers(ranks)] = rng.uniform(1.1, 1.5)
    nothing = np.zeros(shape)

    def on_one(seconds: float) -> np.ndarray:
        found = nothing.copy()
        found[np.arange(steps), late] = rng.uniform(0.5, 1.5, steps) * seconds
        return found

    return Known(
        lengths,
        pace,
        on_one(0.08) if "loader" in causes else nothing,
        on_one(0.08) if "collector" in causes else nothing,
        on_one(0.08 / (4 * count)) if "launch" in causes else nothing,
        bytes=rng.uniform(3e-3, 1e-2) if "transfer" in causes else 1e-4,
        jitter=rng.normal(1, 0.005, (*shape, count)),
    )
