"""The runs of docs/studies/validate_gpu.py: schedules before them, and tables with their bounds after them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from agreement import table

from odc_engine.measuring.tuning import BOUNDED, FROM, OF_COPY, short
from odcsim import balance, catalog, load, profile, timeline
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.executors.simulation import Simulation, simulate
from odcsim.profile import Profile
from odcsim.results.metrics import usage
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.timeline import Block, Timeline

MODEL, DEVICES, DTYPE = "r1-distill-qwen-1.5b", 4, "bfloat16"
LONGEST = 32768  # tokens: LongAlign is scaled down to it, so that four devices' microbatches fit into one GPU
MINIBATCH, MINIBATCHES, SEED = 4, 3, 20260
REPEATS = 2
OVERLAP, OVERHEAD = 0.80, 0.02
BACKWARD = ("backward", "embed backward")


@dataclass(frozen=True, slots=True)
class Row:
    """What is run, and the kept profile that predicts it."""

    sync: str
    balancer: str
    backend: str = "threads"
    device: str = "cuda"
    known: str = "profile.json"

    @property
    def name(self) -> str:
        return f"{self.sync} + {self.balancer}, {'nccl' if self.backend == 'torch' else self.backend}"


Compared = tuple[dict[Row, Timeline], dict[Row, list[Timeline]]]  # predicted, and measured in each repeat


def cost_of(known: Profile, devices: int = DEVICES) -> Cost:
    return Cost(catalog.model(MODEL), known, Cluster(devices, devices, 1.0, 1.0, devices))


def planned(cost: Cost, lengths: str, rows: Sequence[Row]) -> dict[Row, ScheduleFile]:
    """The same samples in each row, by its balancer."""
    devices, files = cost.cluster.devices, {}
    every = drawn(lengths, devices)
    for row in rows:
        header = Header(row.balancer, MODEL, "the profile's", LONGEST, devices, SEED)
        schedules = tuple(
            Schedule(tuple(of.tolist()), balance.balance(row.balancer, of, cost.sample_seconds(of), devices, LONGEST))
            for of in every
        )
        files[row] = ScheduleFile(header, schedules).sealed()
    return files


def drawn(lengths: str, devices: int) -> list[np.ndarray]:
    """Minibatches like LongAlign's, or of samples that are all alike."""
    count = MINIBATCH * devices
    if lengths == "even":
        return [np.full(count, LONGEST // 4)] * MINIBATCHES
    trace = load("longalign")
    found = trace.minibatches(count, MINIBATCHES, seed=SEED)
    return [np.maximum(trace.take(ids) * LONGEST // trace.longest, 16) for ids in found]


def predicted(cost: Cost, row: Row, file: ScheduleFile) -> Timeline:
    return simulate(file, Simulation(cost, row.sync))


def runs(folder: Path, lengths: str, rows: Sequence[Row], devices: int = DEVICES) -> Compared:
    """Each row predicted from its profile, and run, one after the other in each repeat. The first row's profile weighs
    the samples of all."""
    from odc_engine import backends
    from odc_engine.job import Job
    from odc_engine.runs.run import run

    costs = {row: cost_of(profile.read(folder / row.known), devices) for row in rows}
    files = planned(costs[rows[0]], lengths, rows)
    measured: dict[Row, list[Timeline]] = {row: [] for row in rows}
    for number in range(REPEATS):
        for row, file in files.items():
            job = Job(
                schedules=file.schedules,
                cost=costs[row].by(sync=row.sync, dtype=DTYPE),
                backend=backends.chosen(row.backend, row.device),
                emulate=False,
                timeout=120.0,
                seed=SEED,
            )
            path = folder / f"{lengths}-{row.sync}-{row.backend}-{number}.npz"
            if run(file, job, str(path), quiet=True):
                raise RuntimeError("a run failed, see above")
            measured[row].append(timeline.read(path))
    return {row: predicted(costs[row], row, file) for row, file in files.items()}, measured


def moved(rates: Mapping[int, Mapping[str, float]]) -> tuple[bool, str]:
    """Rates by size and way, in bytes read and written in a second."""
    ways = list(next(iter(rates.values())))
    rows = [
        [f"{size >> 20} MB", *(f"{of[way] / 1e9:.0f} ({of[way] / of['copy']:.0%})" for way in ways)]
        for size, of in rates.items()
    ]
    missed = short(rates)
    told = f"GB/s read and written, and share of a plain copy. Bound: {OF_COPY:.0%} for {' and '.join(BOUNDED)} from"
    told += f" {FROM >> 20} MB on. `add` is the atomic sum, which passes over memory three times; it has no bound."
    return not missed, "\n\n".join([told, table(("size", *ways), rows), *missed])


def seconds(lines: Sequence[Timeline]) -> np.ndarray:
    """Of all minibatches together, in each run."""
    return np.array([usage(line).makespan.sum() for line in lines])


def compared(told: Mapping[Row, Timeline], measured: Mapping[Row, Sequence[Timeline]]) -> tuple[bool, str]:
    """Side by side. Reached where on-demand and each collective come in the predicted order."""
    rows, spans = [], {}
    for row, lines in measured.items():
        found, guess = seconds(lines), float(seconds([told[row]])[0])
        truth = float(np.median(found))
        spans[row] = guess, truth
        idle = float(np.median([usage(line).idle() for line in lines]))
        numbers = f"{guess:.3f}", f"{truth:.3f}", f"{guess / truth - 1:+.1%}", f"{found.min():.3f} to {found.max():.3f}"
        rows.append([row.name, *numbers, f"{usage(told[row]).idle():.1%}", f"{idle:.1%}"])
    head = ("", "predicted s", "measured s", "error", "runs", "idle predicted", "idle measured")
    good, ratios = True, []
    [ours] = [row for row in spans if row.sync == "on-demand"]
    for row in [row for row in spans if row != ours]:
        guess, truth = (spans[row][i] / spans[ours][i] for i in range(2))
        good = good and (guess > 1) == (truth > 1)
        ratios.append(f"On-demand is {truth:.3f} times as fast as {row.name}, {guess:.3f} predicted.")
    return good, "\n\n".join([table(head, rows), *ratios])


def overlap(lines: Sequence[Timeline]) -> tuple[bool, str]:
    """How much of the layers' pushes lies beside their device's backward. The root's comes after all of it."""
    inside, total = np.sum([beside(block) for line in lines for block in line.blocks], axis=0)
    share = float(inside / total) if total else 0.0
    told = f"{share:.1%} of the time of layers' pushes lies beside backward, of {total:.3f} s on all devices together."
    return share >= OVERLAP, f"{told} Bound: {OVERLAP:.0%}."


def beside(block: Block) -> tuple[float, float]:
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


def uniform(told: Mapping[Row, Timeline], measured: Mapping[Row, Sequence[Timeline]]) -> tuple[bool, str]:
    """What on-demand takes beyond the collectives where all devices do the same."""
    best = {row.sync: float(seconds(lines).min()) for row, lines in measured.items()}
    overhead = best["on-demand"] / best["collective"] - 1
    guess = {row.sync: float(seconds([line])[0]) for row, line in told.items()}
    rows = [[sync, f"{guess[sync]:.3f}", f"{found:.3f}"] for sync, found in best.items()]
    line = f"On-demand takes {overhead:+.1%}, {guess['on-demand'] / guess['collective'] - 1:+.1%} predicted."
    line += f" Bound: {OVERHEAD:+.0%}."
    return overhead <= OVERHEAD, "\n\n".join([table(("sync", "predicted s", "fastest run s"), rows), line])
