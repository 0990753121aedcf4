"""How often the interval of a fit to one published run holds the others of its series: `make scaling`.

    python docs/studies/scaling.py [-o docs/model/statistics.md]

A series is one publisher's runs of one model, GPU and recipe, which differ in devices, lengths or batch. Each run is
given to `odcsim fit` as tokens per second, and every other one is asked about by the profile that it makes.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from page_table import table
from published_cells import Cell, read
from published_coefficients import shipped
from published_step import cost
from published_widths import spread
from scipy.optimize import nnls

from odcsim.catalog.estimates.rates import spreads
from odcsim.decide.calibrate import Simulated, by_rate
from odcsim.decide.setting import Setting
from odcsim.decide.unmeasured import INTERVAL, SHARES, differences, run_of, widen
from odcsim.profile import Profile
from odcsim.support.outputs import check_writable, write_text
from odcsim.timeline import Floats
from odcsim.trace import Trace

PAGE = Path(__file__).parents[1] / "model" / "statistics.md"
BEGIN, END = "<!-- begin scaling -->", "<!-- end scaling -->"
STALLED = "ATLIMIT"  # in the note of a run whose allocator retried, for which no estimate is made
LEFT_OUT = ("torchao",)  # whose runs differ in what no recipe holds
NORMAL = 1.4826  # the standard deviation of normal errors over the median of their sizes


@dataclass(frozen=True, slots=True)
class Asked:
    """A published run, by the fit to another one of its series."""

    source: str
    publisher: str
    parts: tuple[float, ...]  # of each of unmeasured.SHARES, how far it differs
    spread: float  # the catalogue's
    error: float  # logarithm of predicted over published seconds
    alone: float  # half of the interval's logarithm: the fit's own ...
    reach: float  # ... and with what was not measured

    @property
    def differs(self) -> tuple[str, ...]:
        return tuple(name for name, part in zip(SHARES, self.parts, strict=True) if part)


def series(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Of two runs or more. Nodes of other sizes are one series: 2 GPUs of a machine, and 4."""
    found: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.stated and cell.publisher not in LEFT_OUT and STALLED not in cell.note:
            key = (cell.source, replace(cell.model, name=""), cell.gpu, cell.recipe, cell.cluster.nic_bandwidth)
            found[key].append(cell)
    return [of for of in found.values() if len(of) > 1]


def asked(cell: Cell) -> Setting:
    """As `compare` would be asked about it."""
    each = cell.sequences * cell.microbatches
    trace = Trace(cell.source, np.array([cell.sequence]), np.array([each * cell.cluster.gpus]))
    priced = cost(cell, shipped().rates(cell), shipped().network)
    return Setting(trace, priced, each, max_tokens=cell.tokens, minibatches=1)


def way(cell: Cell) -> tuple[str, str]:
    return "lb-micro", cell.recipe.sync


def profile_of(cell: Cell) -> Profile:
    """What `odcsim fit` makes of it."""
    return by_rate(Simulated(asked(cell), way(cell)), cell.tokens_per_second * cell.cluster.gpus).profile()


def predicted(cell: Cell, fitted: Profile) -> Asked:
    setting = asked(cell)
    known = replace(setting, cost=replace(setting.cost, profile=fitted))
    wider, seconds = widen(known).cost.profile, Simulated(known, way(cell)).seconds[0]
    far = {name: min(1.0, part) for name, part, _ in differences(known.cost, run_of(known), setting.trace.longest)}
    error, parts = math.log(seconds / cell.seconds), tuple(far.get(name, 0.0) for name in SHARES)
    ends = math.log(fitted.high), math.log(wider.high)
    return Asked(cell.source, cell.publisher, parts, spread(spreads(), cell), error, *ends)


def pairs(cells: Sequence[Cell]) -> list[Asked]:
    """Each run by each other of its series."""
    found = []
    for every in series(cells):
        for one in every:
            fitted = profile_of(one)
            found += [predicted(other, fitted) for other in every if other is not one]
    return found


HEAD = (
    "differs in",
    "sources",
    "pairs",
    "off (rms)",
    "of the spread",
    "held by the fit alone",
    "width",
    "held",
    "width",
)


def rows(found: Sequence[Asked]) -> list[list[str]]:
    """By what differs, alone; then by source, and all. Averaged over sources, so that none stands for all."""
    kinds = sorted({one.differs for one in found}, key=lambda names: (len(names), names))
    parts = [(" + ".join(kind) or "nothing", [one for one in found if one.differs == kind]) for kind in kinds]
    parts += [(name, [one for one in found if one.source == name]) for name in sorted({one.source for one in found})]
    return [_row(name, of) for name, of in [*parts, ("**all**", list(found))]]


def _row(name: str, found: Sequence[Asked]) -> list[str]:
    by: dict[str, list[Asked]] = defaultdict(list)
    for one in found:
        by[one.source].append(one)

    def mean(values: Iterable[Sequence[float]]) -> float:
        return float(np.mean([np.mean(of) for of in values]))

    off, share = (
        math.sqrt(mean([[value(one) ** 2 for one in of] for of in by.values()]))
        for value in (lambda one: one.error, lambda one: one.error / one.spread)
    )
    told = [name, str(len(by)), f"{len(found):,}", f"{off:.3f}", f"{share:.2f}"]
    for reach in (lambda one: one.alone, lambda one: one.reach):
        told.append(f"{mean([[abs(one.error) <= reach(one) for one in of] for of in by.values()]):.0%}")
        told.append(f"{mean([[2 * math.sinh(reach(one)) for one in of] for of in by.values()]):.3f}")
    return told


def learnt(found: Sequence[Asked]) -> Floats:
    """What each part is of the spread, by the squares of errors beyond the fit's own: each source counts once."""
    many = Counter(one.source for one in found)
    weights = np.array([many[one.source] ** -0.5 for one in found])
    squares = np.array([(one.error**2 - (one.alone / INTERVAL) ** 2) / one.spread**2 for one in found])
    far = np.array([one.parts for one in found]) ** 2
    return np.sqrt(nnls(far * weights[:, None], squares.clip(0.0, None) * weights)[0])


def blind(found: Sequence[Asked]) -> list[Asked]:
    """Every pair by parts that were learnt without its publisher."""
    again = []
    for publisher in sorted({one.publisher for one in found}):
        shares = learnt([one for one in found if one.publisher != publisher])
        for one in (one for one in found if one.publisher == publisher):
            added = INTERVAL * one.spread * float(np.linalg.norm(shares * one.parts))
            again.append(replace(one, reach=math.hypot(one.alone, added)))
    return again


def repeated(found: Sequence[Asked]) -> float:
    """Standard deviation between runs that differ in devices alone, by the median of each source: in the middle of
    sources."""
    by: dict[str, list[float]] = defaultdict(list)
    for one in found:
        if one.differs == ("devices",):
            by[one.source].append(abs(one.error))
    return float(np.median([NORMAL * np.median(errors) for errors in by.values()]))


def told(found: Sequence[Asked]) -> str:
    alike = f"Runs that differ in devices alone are {repeated(found):.1%} off, as a standard deviation by the median"
    *_, held, width = _row("", blind(found))
    by = ", ".join(f"{name} {share:.2f}" for name, share in zip(SHARES, learnt(found), strict=True) if share)
    without = (
        f"Parts that are learnt from all other publishers' pairs hold {held} of a publisher's, at a width of {width}"
    )
    return (
        f"{table(HEAD, rows(found), figures=True)}\n\n{alike} of each source, in the middle of sources. {without}; "
        f"learnt from all pairs they are {by}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, metavar="PAGE")
    args = parser.parse_args()
    check_writable(args.page)
    found = told(pairs(read()))
    before, _, rest = args.page.read_text().partition(BEGIN)
    write_text(args.page, f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}")
    print(found)


if __name__ == "__main__":
    main()
