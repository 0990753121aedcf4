"""Predict every published run, judge by sources left out, and write docs/published.md.

    python docs/studies/published.py [--fit] [-o docs/published.md]

Each run is predicted with coefficients that its own source had no part in. `--fit` prints what all sources together
decide, which is what odcsim/catalog/rates.toml and the shares of odcsim/cluster.py hold.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import published_page
from published_cells import Cell, read
from published_fit import Fitted, fit, left_out, shipped
from published_step import simulated

from odcsim.catalog.estimates.compute import INTERVAL, spread
from odcsim.catalog.rates import rates

DOCS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Judged:
    """One run, predicted without its source."""

    cell: Cell
    seconds: float
    low: float
    high: float
    shipped: float  # by the coefficients that the catalogue holds, to which it contributed

    @property
    def error(self) -> float:
        return self.seconds / self.cell.seconds - 1

    @property
    def inside(self) -> bool:
        return self.low <= self.cell.seconds <= self.high


def judge(cells: Sequence[Cell], others: dict[str, Fitted], known: Fitted) -> list[Judged]:
    return [_judged(cell, others[cell.source], known) for cell in cells]


def _judged(cell: Cell, without: Fitted, known: Fitted) -> Judged:
    seconds = predicted(cell, without)
    off = float(np.exp(INTERVAL * spread(rates(cell.gpu.family), cell.model, cell.recipe)))
    return Judged(cell, seconds, seconds / off, seconds * off, predicted(cell, known))


def predicted(cell: Cell, by: Fitted) -> float:
    """By the simulator, as a comparison would run it."""
    return simulated(cell, by.rates(cell.gpu.family), by.network)


def grouped(found: Sequence[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    groups: dict[str, list[Judged]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="print the coefficients that all sources decide")
    parser.add_argument("-o", dest="output", default=str(DOCS / "published.md"))
    args = parser.parse_args()
    cells = read()
    if args.fit:
        for name, value in fit(cells).values.items():
            print(f"{name:24} {value:g}")
        return
    found = judge(cells, left_out(cells), shipped())
    Path(args.output).write_text(published_page.page(found, date.today()), encoding="utf-8")
    print(published_page.summary(found))


if __name__ == "__main__":
    main()
