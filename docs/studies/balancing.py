"""Measure the balancers and put the tables into docs/balancing.md.

    python docs/studies/balancing.py [--lengths DIR] [-o docs/balancing.md]

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; what is around it is written by hand and stays. Idle and
loads are of compute alone, by the published fit for 7B: no constants of microbatches, no transfers. With `--lengths`
the files in that folder are balanced, too; without it their table stays as it is.
"""

import argparse
import os
import platform
import re
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from itertools import count
from pathlib import Path
from time import process_time

import numpy as np
import unplanned
from numpy.typing import NDArray
from page_table import table
from textbook import textbook

from odcsim.balance import NAMES, Assignment, balance, runs_with
from odcsim.balance.partition import lower_bound
from odcsim.balance.refine import scenarios
from odcsim.decide.setting import cost_of
from odcsim.reading import draw, load
from odcsim.support.outputs import write_text

ROOT = Path(__file__).parents[2]

Lengths = NDArray[np.int64]
Floats = NDArray[np.float64]
COST = cost_of("r1-distill-qwen-7b", "a100", None, 8)
SHAPES = {
    "longalign": "longalign",
    "swe": "lognormal:median=33200,sigma=0.52,max=65536",
    "chat": "lognormal:median=684,sigma=1.06,max=16384",
}
DRAWS = {8: 20, 64: 5, 512: 2}  # of each number of devices
FREE = tuple(name for name in NAMES if not runs_with(name, "collective"))
BY_COST = ("lb-micro", "sorted-slice", *FREE)
TIMED = ((8, 4), (64, 8), (512, 8), (4096, 16))


@cache
def longest(source: str | Path) -> int:
    return load(source).longest


@cache
def drawn(source: str | Path, samples: int, seed: int) -> Lengths:
    return draw(source, samples, seed)


@dataclass(frozen=True, slots=True)
class Cell:
    """One size of one trace."""

    name: str
    source: str | Path
    devices: int
    samples: int

    def __str__(self) -> str:
        return f"{self.name} {self.devices} x {self.samples}"

    @property
    def limit(self) -> int:
        return longest(self.source)

    def minibatch(self, seed: int) -> Lengths:
        return drawn(self.source, self.devices * self.samples, seed)

    def mean(self, measure: Callable[["Cell", Lengths], float]) -> float:
        """Over the minibatches that are drawn of this size."""
        return float(np.mean([measure(self, self.minibatch(seed)) for seed in range(DRAWS[self.devices])]))


def cells(devices: tuple[int, ...], samples: tuple[int, ...]) -> list[Cell]:
    return [Cell(name, source, d, m) for name, source in SHAPES.items() for d in devices for m in samples]


def planner(cell: Cell, lengths: Lengths, name: str) -> Callable[[], Assignment]:
    """The plan, to be timed without what its costs take; each time in another unit, so that no split is remembered."""
    linear, quadratic = COST.sample_parts(lengths)
    weights, rows, turn = linear + quadratic, scenarios(linear, quadratic), count()

    def plan() -> Assignment:
        unit = 1 + next(turn) / 2**40
        return balance(name, lengths, unit * weights, cell.devices, cell.limit, scenarios=rows)

    return plan


def planned(cell: Cell, lengths: Lengths, name: str) -> Assignment:
    return planner(cell, lengths, name)()


def seconds(lengths: Lengths, factor: float = 1.0) -> Floats:
    """What samples take where the quadratic part is so many times what was planned with."""
    linear, quadratic = COST.sample_parts(lengths)
    return linear + factor * quadratic


def heaviest(assignment: Assignment, weights: Floats) -> float:
    return max(float(sum(weights[i] for part in device for i in part)) for device in assignment)


def lockstep(assignment: Assignment, weights: Floats) -> float:
    """Seconds where each step takes as long as its heaviest microbatch."""
    steps = zip(*[[sum(weights[i] for i in part) for part in device] for device in assignment], strict=True)
    return float(sum(max(step) for step in steps))


def gap(cell: Cell, lengths: Lengths, name: str) -> float:
    weights = seconds(lengths)
    if name == "textbook":
        return float(max(textbook(weights.tolist(), cell.devices)) / lower_bound(weights, cell.devices) - 1)
    return heaviest(planned(cell, lengths, name), weights) / lower_bound(weights, cell.devices) - 1


def lost(cell: Cell, lengths: Lengths, name: str, factor: float) -> float:
    """Idle that is not forced by the lower bound."""
    truth = seconds(lengths, factor)
    return 1 - lower_bound(truth, cell.devices) / heaviest(planned(cell, lengths, name), truth)


def idle(cell: Cell, lengths: Lengths, name: str, *, meets: bool) -> float:
    weights, found = seconds(lengths), planned(cell, lengths, name)
    spent = lockstep(found, weights) if meets else heaviest(found, weights)
    return float(1 - weights.sum() / cell.devices / spent)


def microbatches(cell: Cell, lengths: Lengths, name: str) -> float:
    return float(np.mean([len(device) for device in planned(cell, lengths, name)]))


def quickest(call: Callable[[], object], times: int = 3) -> float:
    """Milliseconds of a core. Runs are a second and more: a core's speed changes every few tenths of it."""
    taken: list[float] = []
    while len(taken) < times or sum(taken) < 1000:
        start = process_time()
        call()
        taken.append(1e3 * (process_time() - start))
    return min(taken)


def megabytes(call: Callable[[], object]) -> float:
    tracemalloc.start()
    call()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 1e6


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


def code(names: tuple[str, ...]) -> list[str]:
    return [name if name == "textbook" else f"`{name}`" for name in names]


def planning() -> str:
    """Of the slowest shape the quickest of some runs; and the memory of the hungriest at the largest size."""
    rows = []
    for name in BY_COST:
        taken, most = [], 0.0
        for devices, samples in TIMED:
            calls = [planner(cell, cell.minibatch(0), name) for cell in cells((devices,), (samples,))]
            taken.append(f"{max(quickest(call) for call in calls):.1f}")
            most = max(megabytes(call) for call in calls)
        rows.append([f"`{name}`", *taken, f"{most:.0f}"])
    sums = [_sums_only(*size) if size[0] <= 512 else "-" for size in TIMED]
    rows.append(["textbook", *sums, "-"])
    return table(["milliseconds", *(f"{d:,} x {m}" for d, m in TIMED), "MB"], rows, figures=True)


def _sums_only(devices: int, samples: int) -> str:
    weights = seconds(draw("longalign", devices * samples, 0)).tolist()
    return f"{quickest(partial(textbook, weights, devices), 1):.1f}"


def gaps() -> str:
    names = ("textbook", "lb-micro", *FREE)
    found = cells(tuple(DRAWS), (3, 4, 8))
    rows = [[str(cell), *(percent(cell.mean(partial(gap, name=name))) for name in names)] for cell in found]
    return table(["% over the bound", *code(names)], rows, figures=True)


def wrong() -> str:
    names = ("lb-micro", *FREE)

    def worst(cell: Cell, name: str) -> str:
        return percent(max(cell.mean(partial(lost, name=name, factor=factor)) for factor in (0.8, 1.2)))

    rows = [[str(cell), *(worst(cell, name) for name in names)] for cell in cells(tuple(DRAWS), (4, 8))]
    return table(["idle in %", *code(names)], rows, figures=True)


def collective() -> str:
    """Idle under lb-micro, an arrow, and under sorted-slice."""

    def both(cell: Cell) -> str:
        before, after = (cell.mean(partial(idle, name=name, meets=True)) for name in ("lb-micro", "sorted-slice"))
        return f"{percent(before, 1)} → {percent(after, 1)}{' !' if after > before + 1e-9 else ''}"

    rows = [
        [f"{name}, {m} a device", *(both(Cell(name, source, d, m)) for d in DRAWS)]
        for name, source in SHAPES.items()
        for m in (2, 4, 8, 16)
    ]
    return table(["idle in %", *(f"{devices} devices" for devices in DRAWS)], rows, figures=True)


def counts() -> str:
    rows = [
        [str(cell), *(f"{cell.mean(partial(microbatches, name=name)):.2f}" for name in FREE)]
        for cell in cells((64,), (8, 16))
    ]
    return table(["microbatches a device", *code(FREE)], rows, figures=True)


def recorded(folder: Path) -> str:
    together, alone = ("lb-micro", "sorted-slice"), ("lb-micro", *FREE)
    rows = []
    for path in sorted(folder.glob("*.csv")):
        for cell in (Cell(path.stem, path, 8, 4), Cell(path.stem, path, 64, 8)):
            row = [cell.mean(partial(idle, name=name, meets=True)) for name in together]
            row += [cell.mean(partial(idle, name=name, meets=False)) for name in alone]
            took = quickest(planner(cell, cell.minibatch(0), "lb-robust"))
            rows.append([str(cell), *(percent(share, 1) for share in row), f"{took:.1f}"])
    heads = [f"collective {name}" for name in code(together)] + [f"on-demand {name}" for name in code(alone)]
    return table(["idle in %", *heads, "ms for `lb-robust`"], rows, figures=True)


def beyond(sources: Mapping[str, str | Path]) -> str:
    return table(unplanned.head(), unplanned.rows(sources), figures=True)


def machine() -> str:
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    cpu = f"{cores} cores, {' '.join(named[1].split()) if named else platform.machine()}"
    beside = f"other work beside it (load {load:.1f} as it began)" if load > cores / 2 else "nothing beside it"
    return f"Measured on {date.today()}, {beside}: {cpu}, Python {platform.python_version()}, numpy {np.__version__}."


def put(page: str, name: str, content: str) -> str:
    """The page with what stands between the two marks replaced."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if start not in page or end not in page:
        raise SystemExit(f"the page has no place for '{name}': {start.strip()} and {end}")
    return page[: page.index(start)] + start + "\n" + content + "\n\n" + page[page.index(end) :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the balancers.")
    parser.add_argument("--lengths", type=Path, metavar="DIR", help="a folder of CSV files with recorded lengths")
    parser.add_argument("-o", dest="output", type=Path, default=ROOT / "docs/balancing.md")
    args = parser.parse_args()
    if args.lengths and not any(args.lengths.glob("*.csv")):
        raise SystemExit(f"no CSV files in {args.lengths}")
    parts: dict[str, Callable[[], str]] = {f.__name__: f for f in (machine, planning, gaps, wrong, collective, counts)}
    parts["beyond"] = partial(beyond, SHAPES)
    if args.lengths:
        parts["recorded"] = partial(recorded, args.lengths)
        parts["recorded_beyond"] = partial(beyond, {path.stem: path for path in sorted(args.lengths.glob("*.csv"))})
    page = args.output.read_text(encoding="utf-8")
    for name, measure in parts.items():
        page = put(page, name, measure())
        print(f"{name}: done", file=sys.stderr, flush=True)
    write_text(args.output, page)


if __name__ == "__main__":
    main()
