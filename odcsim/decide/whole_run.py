"""Rows as a whole training run: so many epochs of the trace, in hours and dollars."""

import math
from dataclasses import dataclass, replace
from typing import Any

from odcsim.decide import stock
from odcsim.decide.evaluate import Evaluation
from odcsim.neighbours.neighbour import GOING_ON, KEPT
from odcsim.results.intervals import of_run
from odcsim.results.summary import Row, scaled
from odcsim.trace import DPO, Trace

# What a row spends, and what it is called of a whole run.
SPENT = {
    "makespan_seconds": "seconds", "model_low": "seconds_low", "model_high": "seconds_high",
    **{name: name for name in "gpu_hours gpu_hours_low gpu_hours_high dollars dollars_low dollars_high".split()},
}  # fmt: skip
SPEEDUPS = ("speedup", "speedup_low", "speedup_high", "speedup_best_collective", "sync_gain", "balancer_gain")
RUN = ("steps", "samples", "reference_seconds", *SPENT.values())


def steps(trace: Trace, epochs: float, global_batch: int, trainer: str | None = None) -> int:
    """Of the optimizer. An epoch's last one may have fewer samples: a trainer keeps it or drops it, and where nobody is
    named an epoch goes on in the next."""
    size, known = trace.bundles.population, stock.find(trainer)
    if known is None or known.ending == GOING_ON:
        return math.ceil(size * epochs / global_batch)
    each = -(-size // global_batch) if known.ending == KEPT else size // global_batch
    return max(1, math.ceil(each * epochs))


def epochs(count: float) -> str:
    return f"{count:g} epoch{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class WholeRun:
    """What the minibatches of an evaluation stand for: so many epochs of its trace."""

    evaluation: Evaluation
    epochs: float

    @property
    def global_batch(self) -> int:
        return self.evaluation.setting.batch

    @property
    def steps(self) -> int:
        setting = self.evaluation.setting
        return steps(setting.trace, self.epochs, self.global_batch, setting.trainer)

    @property
    def passed(self) -> float:
        """Minibatches that a reference model passes before the first step: those of the whole trace, once."""
        setting = self.evaluation.setting
        return setting.trace.bundles.population / self.global_batch if setting.trace.kind == DPO else 0.0

    @property
    def samples(self) -> float:
        """Of a step; of packed rows on average."""
        own = self.evaluation.rows[0].made
        return own.samples if own else self.global_batch

    def of(self, row: Row) -> "WholeRun":
        """The run by the row: of one that is a trainer's own, with what it draws and packs."""
        own: Evaluation | None = getattr(self.evaluation, "stock", {}).get(row.pair)  # a comparison's
        return self if own is None else WholeRun(own, self.epochs)

    def over(self, row: Row) -> Row:
        """The row with the whole run's steps in place of its minibatches, and the interval of the run."""
        if (own := self.of(row)) is not self:
            speedups = {name: getattr(row, name) for name in SPEEDUPS}
            return replace(own.over(own.evaluation.row(*row.pair)), **speedups)
        evaluation, setting = self.evaluation, self.evaluation.setting
        draws = evaluation.draws if setting.whole else evaluation.draws.of_all(setting.trace.bundles.population)
        profile, seconds = setting.cost.profile, evaluation.usage(*row.pair).makespan
        between = of_run(seconds, draws, profile.low, profile.high)
        reference = self.passed * row.reference_seconds / row.minibatches
        times = self.steps / row.minibatches + reference / row.makespan_seconds
        return replace(scaled(row, times, between), minibatches=self.steps, reference_seconds=reference)

    def shown(self, row: Row) -> Row:
        """The same, for people: without an interval where the seconds have none."""
        run = self.over(row)
        return scaled(run, 1.0, (1.0, 1.0)) if row.certain else run

    @property
    def words(self) -> str:
        count = epochs(self.epochs)
        return count if self.evaluation.setting.trainer else f"{count}, {self.steps:,} steps"

    def spent(self, row: Row) -> dict[str, Any]:
        """What the run takes, as JSON and tables name it."""
        own, run = self.of(row), self.over(row)
        spent = {key: getattr(run, name) for name, key in SPENT.items()}
        return {"steps": own.steps, "samples": own.samples, "reference_seconds": run.reference_seconds, **spent}

    def columns(self, row: Row) -> dict[str, Any]:
        """The same beside a row of a table."""
        return {f"run.{name}": value for name, value in self.spent(row).items()}

    def as_json(self) -> dict[str, Any]:
        rows = [{"row": row.name, **self.spent(row)} for row in self.evaluation.rows]
        return {"epochs": self.epochs, "global_batch": self.global_batch, "steps": self.steps, "rows": rows}
