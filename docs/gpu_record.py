"""What docs/validate_gpu.py makes of its runs: schedules before them, and tables with their bounds after them."""

from collections.abc import Mapping, Sequence

import numpy as np
from agreement import table

from odc_engine.tuning import BOUNDED, FROM, OF_COPY, short
from odcsim import balance, catalog, load
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.metrics import usage
from odcsim.profile import Profile
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.simulation import Simulation, simulate
from odcsim.timeline import Block, Timeline

MODEL, DEVICES, DTYPE = "r1-distill-qwen-1.5b", 4, "bfloat16"
LONGEST = 32768  # tokens: LongAlign is scaled down to it, so that four devices' microbatches fit into one GPU
MINIBATCH, MINIBATCHES, SEED = 4, 3, 20260
OVERLAP, OVERHEAD = 0.80, 0.02
BACKWARD = ("backward", "embed backward")


def planned(known: Profile, lengths: str, rows: Sequence[tuple[str, str]]) -> tuple[Cost, dict[str, ScheduleFile]]:
    """The same samples under each sync, by its balancer."""
    cost = Cost(catalog.model(MODEL), known, Cluster(DEVICES, DEVICES, 1.0, 1.0, DEVICES))
    every = drawn(lengths)
    files = {}
    for sync, balancer in rows:
        header = Header(balancer, MODEL, "the profile's", LONGEST, DEVICES, SEED)
        schedules = tuple(
            Schedule(tuple(of.tolist()), balance.balance(balancer, of, cost.sample_seconds(of), DEVICES, LONGEST))
            for of in every
        )
        files[sync] = ScheduleFile(header, schedules).sealed()
    return cost, files


def drawn(lengths: str) -> list[np.ndarray]:
    """Minibatches like LongAlign's, or of samples that are all alike."""
    count = MINIBATCH * DEVICES
    if lengths == "even":
        return [np.full(count, LONGEST // 4)] * MINIBATCHES
    trace = load("longalign")
    found = trace.minibatches(count, MINIBATCHES, seed=SEED)
    return [np.maximum(trace.take(ids) * LONGEST // trace.longest, 16) for ids in found]


def predicted(cost: Cost, files: Mapping[str, ScheduleFile]) -> dict[str, Timeline]:
    return {sync: simulate(file, Simulation(cost, sync)) for sync, file in files.items()}


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


def compared(told: Mapping[str, Timeline], measured: Mapping[str, Sequence[Timeline]]) -> tuple[bool, str]:
    """Side by side. Reached where the measured order of the two is the predicted one."""
    rows, spans = [], {}
    for sync, lines in measured.items():
        found, guess = seconds(lines), float(seconds([told[sync]])[0])
        truth = float(np.median(found))
        spans[sync] = guess, truth
        idle = float(np.median([usage(line).idle() for line in lines]))
        numbers = f"{guess:.3f}", f"{truth:.3f}", f"{guess / truth - 1:+.1%}", f"{found.min():.3f} to {found.max():.3f}"
        rows.append([f"{sync} + {lines[0].about.balancer}", *numbers, f"{usage(told[sync]).idle():.1%}", f"{idle:.1%}"])
    head = ("", "predicted s", "measured s", "error", "runs", "idle predicted", "idle measured")
    guess, truth = (spans["collective"][i] / spans["on-demand"][i] for i in range(2))
    ratio = f"On-demand is {truth:.3f} times as fast, {guess:.3f} predicted."
    return (guess > 1) == (truth > 1), "\n\n".join([table(head, rows), ratio])


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


def uniform(told: Mapping[str, Timeline], measured: Mapping[str, Sequence[Timeline]]) -> tuple[bool, str]:
    """What on-demand takes beyond the collectives where all devices do the same."""
    best = {sync: float(seconds(lines).min()) for sync, lines in measured.items()}
    overhead = best["on-demand"] / best["collective"] - 1
    guess = {sync: float(seconds([line])[0]) for sync, line in told.items()}
    rows = [[sync, f"{guess[sync]:.3f}", f"{found:.3f}"] for sync, found in best.items()]
    line = f"On-demand takes {overhead:+.1%}, {guess['on-demand'] / guess['collective'] - 1:+.1%} predicted."
    line += f" Bound: {OVERHEAD:+.0%}."
    return overhead <= OVERHEAD, "\n\n".join([table(("sync", "predicted s", "fastest run s"), rows), line])
