"""Predict every published run, judge by publishers left out, and write docs/published.md and docs/published-runs.md.

    python docs/studies/published.py [--fit] [-o docs/published.md]

Each run is predicted with coefficients and widths that its own publisher had no part in. `--fit` prints what all
publishers together decide, which is what odcsim/catalog/rates.toml and the shares of odcsim/cluster.py hold.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import published_page
from published_cells import Cell, read
from published_coefficients import priors
from published_nested import Learnt, Nested
from published_step import simulated
from published_widths import kinds_of, spread

from odcsim.catalog.estimates.rates import INTERVAL

DOCS = Path(__file__).parents[1]
PRIORS = Learnt(priors(), {})


@dataclass(frozen=True, slots=True)
class Predicted:
    """One run, by what was learnt from some of them."""

    cell: Cell
    seconds: float
    low: float
    high: float
    publishers: int  # who showed how far the rarest of its kinds is off

    @property
    def error(self) -> float:
        return self.seconds / self.cell.seconds - 1

    @property
    def inside(self) -> bool:
        return self.low <= self.cell.seconds <= self.high

    @property
    def width(self) -> float:
        return self.high / self.low


@dataclass(frozen=True, slots=True)
class Study:
    """Every run by what is known without any, by all publishers but its own, and by all of them."""

    priors: list[Predicted]
    blind: list[Predicted]
    known: list[Predicted]


def predicted(cell: Cell, by: Learnt) -> Predicted:
    """By the simulator, as a comparison would run it."""
    seconds = simulated(cell, by.fitted.rates(cell), by.fitted.network)
    off = float(np.exp(INTERVAL * spread(by.spreads, cell)))
    fewest = min(by.spreads[kind].publishers if kind in by.spreads else 0 for kind in kinds_of(cell))
    return Predicted(cell, seconds, seconds / off, seconds * off, fewest)


def judge(cells: Sequence[Cell], others: Mapping[str, Learnt]) -> list[Predicted]:
    """`others`: by publisher, what was learnt without."""
    return [predicted(cell, others[cell.publisher]) for cell in cells]


def study(cells: Sequence[Cell]) -> Study:
    nested, publishers = Nested(cells), {cell.publisher for cell in cells}
    ways = (dict.fromkeys(publishers, PRIORS), {name: nested.without(name) for name in publishers})
    return Study(*(judge(cells, by) for by in (*ways, dict.fromkeys(publishers, nested.without()))))


def told(found: Learnt) -> str:
    """As the catalogue holds it."""
    lines = [f"{name:24} {value:g}" for name, value in found.fitted.values.items()]
    return "\n".join(lines + [f"{kind} = [{of.deviation:g}, {of.publishers}]" for kind, of in found.spreads.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="print what all publishers decide")
    parser.add_argument("-o", dest="output", default=str(DOCS / "published.md"))
    args = parser.parse_args()
    cells = read()
    if args.fit:
        print(told(Nested(cells).without()))
        return
    found = study(cells)
    page = Path(args.output)
    page.write_text(published_page.page(found, date.today()), encoding="utf-8")
    every = page.with_name(f"{page.stem}-runs{page.suffix}")
    every.write_text(published_page.every(found, date.today()), encoding="utf-8")
    print(published_page.totals(found))


if __name__ == "__main__":
    main()
