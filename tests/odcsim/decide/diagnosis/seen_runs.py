"""Runs whose every second has a known cause: ranks that meet after each layer and do nothing beside it.

Leaving a cause out and running again says what it cost, so that a diagnosis can be held against it.
"""

from dataclasses import dataclass, replace

import numpy as np

from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track

LAYERS, UPDATE = 4, 0.01
OWN = {"lengths": "lengths", "device": "pace", "loader": "loader", "collector": "collector", "launch": "host",
       "transfer": "bytes"}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """What makes a run take its time. Arrays by [step, rank], lengths by [step, rank, microbatch]."""

    lengths: np.ndarray
    pace: np.ndarray  # [rank]
    loader: np.ndarray
    collector: np.ndarray
    host: np.ndarray  # before each layer
    bytes: float = 1e-4  # seconds of a meeting once all are there
    jitter: np.ndarray | float = 1.0  # factors of compute [step, rank, microbatch]

    def without(self, cause: str) -> "Known":
        """The same run without it."""
        usual = {"lengths": self.lengths.mean(), "device": 1.0}.get(cause, 0.0)
        return replace(self, **{OWN[cause]: np.full_like(getattr(self, OWN[cause]), usual, dtype=float)})


def run_of_known(known: Known, *, told: str = "lengths", seen: tuple[int, ...] | None = None) -> SeenRun:
    """`told`: how much of the microbatches is known: lengths, kernels, or nothing."""
    steps, ranks, count = known.lengths.shape
    seen, now, found = tuple(range(ranks)) if seen is None else seen, np.zeros(ranks), []
    took = (0.02 + 1e-5 * known.lengths) * known.pace[:, None] * known.jitter
    rows: list[_Pieces] = []

    def all_do(kind: Doing, until: np.ndarray | float, microbatch: int = NO, meeting: int = NO) -> None:
        now[:] = until
        for row, moment in zip(rows, now.tolist(), strict=True):
            row.add(kind, moment, meeting, microbatch)

    for number in range(steps):
        rows[:], met = map(_Pieces, now.tolist()), []
        all_do(Doing.LOADER, now + known.loader[number])
        all_do(Doing.COLLECTOR, now + known.collector[number])
        for m in range(count):
            for _ in range(LAYERS):
                all_do(Doing.HOST, now + known.host[number], m)
                all_do(Doing.COMPUTE, now + took[number, :, m] / LAYERS, m)
                came = {rank: moment for rank, moment in enumerate(now.tolist()) if rank in seen}
                all_do(Doing.MEETING, now.max() + known.bytes, m, len(met))
                met.append(Met("all-gather", 0, ranks, came, float(now[0])))
        all_do(Doing.COMPUTE, now + UPDATE)
        tracks = tuple(rows[rank].track(rank) for rank in seen)
        lengths = known.lengths[number] if told == "lengths" else None
        ran = tuple(
            RanMicrobatch(r, m, float(took[number, r, m]), 0.0, () if lengths is None else (int(lengths[r, m]),))
            for m in range(count)
            for r in seen
        )
        found.append(RanStep(number, max(track.seconds for track in tracks), ran, tracks, tuple(met)))
    alike = {f"kernel {k}": {r: k * float(known.pace[r]) for r in seen} for k in (1.0, 2.0)}
    rests = "lengths" if told == "lengths" else "seconds"
    return SeenRun("a test", ranks, seen, tuple(found), alike=alike if told == "kernels" else {}, rests=rests)


class _Pieces:
    def __init__(self, begin: float) -> None:
        self.edges, self.does = [begin], []

    def add(self, kind: Doing, until: float, meeting: int, microbatch: int) -> None:
        if until > self.edges[-1]:
            self.edges.append(until)
            self.does.append((int(kind), meeting, microbatch))

    def track(self, rank: int) -> Track:
        columns = np.array(self.does, dtype=np.int64).reshape(-1, 3).T
        return Track(rank, columns[0], np.array(self.edges), columns[1], columns[2])


def drawn(rng: np.random.Generator, causes: set[str], ranks: int, steps: int = 12, count: int = 4) -> Known:
    """With these causes and no other; each costs some percent at least."""
    shape, late = (steps, ranks), rng.integers(ranks, size=steps)
    lengths, pace = np.full((*shape, count), 6000), np.ones(ranks)
    if "lengths" in causes:
        lengths = np.minimum(rng.lognormal(8.3, 0.8, lengths.shape), 30000).astype(int) + 100
    if "device" in causes:
        pace[rng.integers(ranks)] = rng.uniform(1.1, 1.5)

    def on_one(cause: str, seconds: float) -> np.ndarray:
        found = np.zeros(shape)
        if cause in causes:
            found[np.arange(steps), late] = rng.uniform(0.5, 1.5, steps) * seconds
        return found

    host = [on_one("loader", 0.08), on_one("collector", 0.08), on_one("launch", 0.08 / (4 * count))]
    moved = rng.uniform(3e-3, 1e-2) if "transfer" in causes else 1e-4
    return Known(lengths, pace, *host, bytes=moved, jitter=rng.normal(1, 0.005, (*shape, count)))
