"""The rows of a sweep in memory: those of its table, as whoever asked in Python has them."""

from typing import Any

from odcsim.decide.sweeps import keys
from odcsim.decide.sweeps.columns import KINDS
from odcsim.decide.sweeps.work import REFUSED
from odcsim.question import FIELDS
from odcsim.recipe import USUAL
from odcsim.support.glance import Glance, Glanced
from odcsim.support.numbers import counted

TOLD = ("makespan_seconds", "idle", "speedup", "memory_fits", REFUSED)  # of a row, in short
DIGITS = 4


class SweepRows(Glanced, list[dict[str, Any]]):
    """A row for each balancer under each sync of each point, in the order of the table. Of a point that cannot run one,
    which says why."""

    def records(self) -> list[dict[str, Any]]:
        """The same with every column of the table, whether a row has it or not."""
        return [{name: row.get(name) for name in KINDS} for row in self]

    def _glance(self) -> Glance:
        every = (*FIELDS, *USUAL.inputs())
        varied = [name for name in every if len({str(row.get(name)) for row in self}) > 1]
        head = [name for name in (*varied, *keys.ROWS, *TOLD) if any(name in row for row in self)]
        refused = [row[REFUSED] for row in self if REFUSED in row]
        points = counted(len({row["point"] for row in self}), "point")
        told = [f"{len(refused):,} of them cannot run, such as: {refused[0]}"] if refused else []
        rows = [[_cell(row.get(name)) for name in head] for row in self]
        return Glance("SweepRows", f"{points}, {counted(len(self), 'row')}", told, head, rows)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
