"""The pages that docs/studies/published.py writes: how far off predictions of published runs are, and each of them."""

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

import numpy as np
from page_table import table
from published_cells import SOURCES, Cell
from published_peaks import SMALL, Peak, each_peak, median_of_sources, peaks, section
from published_tables import BY, OVER, averaged, groups, kinds, rarest, runs, stated, totals
from published_words import (
    BY_RUNS,
    COEFFICIENTS,
    EVERY,
    EVERY_PEAK,
    FINDINGS,
    INTRO,
    JUDGED,
    KINDS,
    MEASURED,
    RUNS,
    UNSTATED,
    WIDTHS,
)

from odcsim.catalog.estimates.rates import families, figures, spreads, widen

if TYPE_CHECKING:
    from published import Predicted, Study


def page(found: "Study", day: date) -> str:
    told, peaked = stated(found.blind), peaks([one.cell for one in found.blind])
    parts = [headline(told, peaked), totals(found), "", JUDGED, leaning([one.cell for one in told]), ""]
    parts += [KINDS, kinds(told), "", MEASURED.format(day=day.isoformat()), section(peaked), FINDINGS]
    return "\n".join(parts).rstrip() + "\n"


def every(found: "Study", day: date) -> str:
    """The appendix: one by one, and what is fitted."""
    told = stated(found.blind)
    parts = [RUNS.format(day=day.isoformat()), rarest(told), "", BY_RUNS]
    for name, key in BY:
        parts += [groups(told, name, key), ""]
    parts += [COEFFICIENTS, coefficients(), "", WIDTHS, widths(), "", EVERY, runs(told), ""]
    parts += [UNSTATED, runs([one for one in found.blind if not one.cell.stated]), ""]
    parts += [EVERY_PEAK, each_peak(peaks([one.cell for one in found.blind])), ""]
    parts += ["## Sources\n", *(f"- {name}: <{link}>" for name, link in SOURCES.items())]
    return "\n".join(parts) + "\n"


def headline(told: Sequence["Predicted"], peaked: Sequence[Peak]) -> str:
    over = {name: averaged(told, key) for name, key in OVER}
    (median, p90, _, inside, width), of_runs = over["sources"], over["runs"]
    errors = np.array([peak.error for peak in peaked])
    return INTRO.format(
        runs=len(told),
        sources=len({one.cell.source for one in told}),
        median=f"{median:.1%}",
        p90=f"{p90:.1%}",
        inside=f"{inside:.0%}",
        width=f"{width:.2f}",
        runs_median=f"{of_runs[0]:.1%}",
        runs_p90=f"{of_runs[1]:.1%}",
        runs_inside=f"{of_runs[3]:.0%}",
        runs_width=f"{of_runs[4]:.2f}",
        peak_runs=len(peaked),
        peak_median=f"{np.median(np.abs(errors)):.1%}",
        peak_sources=f"{median_of_sources(peaked):.1%}",
        peak_small=f"{np.mean(errors < SMALL):.0%}",
    )


def leaning(cells: Sequence[Cell]) -> str:
    """Whose runs most of them are, and how many are of models of an older kind."""
    sources = [cell.source for cell in cells]
    most = max(set(sources), key=sources.count)
    plain = sum(cell.model.plain_mlp for cell in cells)
    own, told = sources.count(most) / len(cells), plain / len(cells)
    return f"{own:.0%} of these runs are {most}'s, and {told:.0%} are of models whose MLP has no gate."


def coefficients() -> str:
    names = ("matmul", "narrow", "moved", "copying", "fp8")
    rows = []
    for family in families():
        known = figures(family)
        rows.append((family, *(f"{known[name][0]:g} ({known[name][1]})" for name in names)))
    return table(("family", *names), rows)


def widths() -> str:
    rows = [(kind, str(of.publishers), f"{of.deviation:g}", f"{widen(of):.2f}") for kind, of in spreads().items()]
    return table(("kind", "publishers", "deviation", "widened"), rows, figures=True)
