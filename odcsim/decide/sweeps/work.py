"""What is done with a point: its comparison becomes rows of plain values. A function of the point and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from odcsim.decide.comparison import Comparison, compare, pairs
from odcsim.decide.sweeps.columns import is_finite
from odcsim.decide.sweeps.point import Point
from odcsim.decide.whole_run import WholeRun
from odcsim.errors import InputError
from odcsim.results.summary import REFERENCE
from odcsim.support import tables

Values = Mapping[str, Any]
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Done:
    """The rows of a point; of one that cannot run a single row, which says why."""

    key: str
    rows: tuple[Values, ...]

    @property
    def refused(self) -> str:
        return str(self.rows[0].get(REFUSED, "")) if self.rows else ""


def work(point: Point) -> Done:
    point.check()
    try:
        rows = tuple(_rows(point))
    except InputError as error:
        rows = ({**dict(point.asked), REFUSED: str(error)},)
    return Done(point.key, tuple({"point": point.key, **_known(row)} for row in rows))


def _rows(point: Point) -> list[Values]:
    """Those that are kept, as `odcsim compare` has them, and a trainer's own. What they are compared with runs, too."""
    setting, asked = point.setting(), dict(point.asked)
    every = pairs(setting)
    kept = [p for p in every if p[0] in (point.balancers or {p[0]}) and p[1] in (point.syncs or {p[1]})]
    if not kept:
        raise InputError(f"no sync of {', '.join(point.syncs)} runs {', '.join(point.balancers)}")
    ways = {REFERENCE[1], *(p[1] for p in kept)}
    beside = {p for p in every if p[1] == REFERENCE[1] or (p[0] == REFERENCE[0] and p[1] in ways)}
    among = [p for p in every if p in kept or p in beside]
    comparison = compare(setting, among=among, doubted=False)
    sizes = {"minibatch": setting.minibatch, "global_batch": setting.minibatch * asked["devices"]}
    runs = _runs(comparison, setting.epochs)
    rows = zip(comparison.rows, runs, strict=True)
    return [
        {**asked, **sizes, "max_tokens": comparison.limit(row), **tables.flat(row.as_json()), **run}
        for row, run in rows
        if row.pair in kept or row.made
    ]


def _runs(comparison: Comparison, epochs: float | None) -> list[Values]:
    """What each row comes to for a whole training run."""
    if epochs is None:
        return [{} for _ in comparison.rows]
    run = WholeRun(comparison, epochs)
    return [run.columns(row) for row in comparison.rows]


def _known(row: Values) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None and is_finite(value)}
