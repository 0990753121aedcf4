"""Rows as a whole training run: so many epochs of the trace, in hours and dollars."""

import math
from dataclasses import dataclass
from typing import Any

from odcsim.decide.answer import Basis
from odcsim.decide.answer_words import money, named
from odcsim.decide.evaluate import Evaluation
from odcsim.results import summary
from odcsim.results.intervals import of_run
from odcsim.results.summary import Row
from odcsim.support.numbers import duration
from odcsim.trace import Trace

# What a row spends, and what it is called of a whole run.
_SPENT = {
    "makespan_seconds": "seconds", "model_low": "seconds_low", "model_high": "seconds_high",
    **{name: name for name in "gpu_hours gpu_hours_low gpu_hours_high dollars dollars_low dollars_high".split()},
}  # fmt: skip
RUN = ("steps", *_SPENT.values())


def steps(trace: Trace, epochs: float, global_batch: int) -> int:
    """Of the optimizer; the last one may have fewer samples."""
    return math.ceil(trace.bundles.whole * epochs / global_batch)


@dataclass(frozen=True, slots=True)
class WholeRun:
    """What the minibatches of an evaluation stand for: so many epochs of its trace."""

    evaluation: Evaluation
    epochs: float

    @property
    def global_batch(self) -> int:
        setting = self.evaluation.setting
        return setting.minibatch * setting.cost.cluster.devices

    @property
    def steps(self) -> int:
        return steps(self.evaluation.setting.trace, self.epochs, self.global_batch)

    def over(self, row: Row) -> Row:
        """The row with the whole run's steps in place of its minibatches, and the interval of the run."""
        found, setting = self.evaluation, self.evaluation.setting
        draws = found.draws if setting.whole else found.draws.of_all(setting.trace.bundles.whole)
        profile, seconds = setting.cost.profile, found.usage(*row.pair).makespan
        return summary.over(row, self.steps, of_run(seconds, draws, profile.low, profile.high))

    def spent(self, row: Row) -> dict[str, Any]:
        """What the run takes, as JSON and tables name it."""
        whole = self.over(row)
        return {key: getattr(whole, name) for name, key in _SPENT.items()}

    def columns(self, row: Row) -> dict[str, Any]:
        """The same beside a row of a table."""
        return {"run.steps": self.steps, **{f"run.{name}": value for name, value in self.spent(row).items()}}

    def as_json(self) -> dict[str, Any]:
        rows = [{"row": named(row), **self.spent(row)} for row in self.evaluation.rows]
        return {"epochs": self.epochs, "global_batch": self.global_batch, "steps": self.steps, "rows": rows}

    def sentence(self, reply: Basis) -> str:
        epochs = f"{self.epochs:g} epoch{'' if self.epochs == 1 else 's'}"
        words = f"{epochs} are {self.steps:,} steps of {self.global_batch:,} samples: {self._takes(reply.chosen)}"
        if reply.reference is reply.chosen:
            return f"{words}."
        return f"{words}, instead of {self._spent(reply.reference)} under {named(reply.reference)}."

    def _takes(self, row: Row) -> str:
        words, whole = f"{self._spent(row)} under {named(row)}", self.over(row)
        if row.certain:
            return words
        low, high = duration(whole.model_low), duration(whole.model_high)
        return f"{words} (90 % interval {low} to {high}{_between(whole)})"

    def _spent(self, row: Row) -> str:
        whole = self.over(row)
        paid = "" if whole.dollars is None else f" and {money(whole.dollars)}"
        return f"{duration(whole.makespan_seconds)}{paid}"


def _between(whole: Row) -> str:
    if whole.dollars_low is None or whole.dollars_high is None:
        return ""
    return f", {money(whole.dollars_low)} to {money(whole.dollars_high)}"
