"""A comparison's rows as a whole training run: so many epochs of the trace, in hours and dollars."""

import math
from dataclasses import dataclass
from typing import Any

from odcsim.command import duration
from odcsim.errors import InputError
from odcsim.questions.answer import Basis, money, named
from odcsim.questions.comparison import Comparison
from odcsim.results.summary import Row


@dataclass(frozen=True, slots=True)
class WholeRun:
    """What the minibatches of a comparison stand for."""

    comparison: Comparison
    epochs: float

    def __post_init__(self) -> None:
        if not 0 < self.epochs < math.inf:
            raise InputError(f"--epochs is {self.epochs:g}", fix="give more than 0, such as 3")

    @property
    def global_batch(self) -> int:
        setting = self.comparison.setting
        return setting.minibatch * setting.cost.cluster.devices

    @property
    def steps(self) -> int:
        """Of the optimizer; the last one may have fewer samples."""
        return math.ceil(self.comparison.setting.trace.whole * self.epochs / self.global_batch)

    def times(self, row: Row) -> float:
        """The run over the row's minibatches."""
        return self.steps / row.minibatches

    def as_json(self) -> dict[str, Any]:
        rows = [
            {
                "row": named(r),
                "seconds": r.makespan_seconds * self.times(r),
                "seconds_low": r.model_low * self.times(r),
                "seconds_high": r.model_high * self.times(r),
                "gpu_hours": r.gpu_hours * self.times(r),
                "dollars": None if r.dollars is None else r.dollars * self.times(r),
            }
            for r in self.comparison.rows
        ]
        return {"epochs": self.epochs, "global_batch": self.global_batch, "steps": self.steps, "rows": rows}

    def sentence(self, reply: Basis) -> str:
        epochs = f"{self.epochs:g} epoch{'' if self.epochs == 1 else 's'}"
        words = f"{epochs} are {self.steps:,} steps of {self.global_batch:,} samples: {self._takes(reply.chosen)}"
        if reply.reference is reply.chosen:
            return f"{words}."
        return f"{words}, instead of {self._spent(reply.reference)} under {named(reply.reference)}."

    def _takes(self, row: Row) -> str:
        words = f"{self._spent(row)} under {named(row)}"
        if row.certain:
            return words
        low, high = (duration(seconds * self.times(row)) for seconds in (row.model_low, row.model_high))
        return f"{words} (nine times in ten {low} to {high}{self._between(row)})"

    def _spent(self, row: Row) -> str:
        paid = "" if row.dollars is None else f" and {money(row.dollars * self.times(row))}"
        return f"{duration(row.makespan_seconds * self.times(row))}{paid}"

    def _between(self, row: Row) -> str:
        if row.dollars_low is None or row.dollars_high is None:
            return ""
        low, high = (money(dollars * self.times(row)) for dollars in (row.dollars_low, row.dollars_high))
        return f", {low} to {high}"
