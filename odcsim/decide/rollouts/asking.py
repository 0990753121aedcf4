"""A step of reinforcement learning for who asks by names and paths: of a command line, or in Python."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from odcsim.decide import setting_words, stock
from odcsim.decide.asking import asked, read, setting_of
from odcsim.decide.comparison import fixed, inputs
from odcsim.decide.evaluate import in_file, least_trusted
from odcsim.decide.rollouts import pilot
from odcsim.decide.rollouts.pilot import RolloutBatch
from odcsim.decide.rollouts.whole import (
    REFERENCE,
    Around,
    WholeStep,
    beside,
    out,
    own,
    sampled,
    steps,
    takes,
    verdict,
)
from odcsim.decide.setting import Setting, drawn
from odcsim.decide.words import RL, checked
from odcsim.errors import InputError, misspelled
from odcsim.question import AMOUNT, COUNT, FLAG, Question, Values
from odcsim.recipe import Recipe
from odcsim.results.intervals import Draws, draws
from odcsim.support.glance import Glance, Glanced
from odcsim.support.numbers import counted, seconds
from odcsim.trace import Trace, check_drawn

UNGROUPED = (
    "No groups are known: rollouts of a prompt are drawn independently, which balances devices more than real ones."
)
PASSES = Values(int, "a whole number from 0 to 3", 0, 3)
TIME = "give seconds, or a time such as 3min"
HEAD = ("batching", "sync", "training", "forward", "step", "times as fast")


@dataclass(frozen=True, slots=True, repr=False)
class RolloutSteps(Glanced):
    """Step seconds under every batching rule and each sync that is run with it."""

    setting: Setting  # of the updates, one behind the other
    batch: RolloutBatch
    around: Around
    rows: tuple[WholeStep, ...]
    grouped: bool  # whether the lengths say which rollouts are of one prompt

    def row(self, dealt: str, run: str) -> WholeStep:
        known = {(row.dealer, row.way): row for row in self.rows}
        if (dealt, run) in known:
            return known[dealt, run]
        runs = [way for dealer, way in known if dealer == dealt]
        dealers = list(dict.fromkeys(dealer for dealer, _ in known))
        hint = misspelled(str(run), runs, alike=0.6) if runs else misspelled(str(dealt), dealers, alike=0.6)
        there = f"{dealt} runs under {' or '.join(runs)}" if runs else f"there are {', '.join(dealers)}"
        raise InputError(f"no row of {dealt!s:.40} under {run!s:.40}", fix=hint or there)

    @property
    def fidelity(self) -> str:
        """Of the seconds of all rows: of the least trusted."""
        return least_trusted(row.fidelity for row in self.rows)

    def sentences(self) -> list[str]:
        """Step seconds, and what batching and sync bring."""
        mine = own(self.rows, self.setting.trainer)
        told = [*takes(self.rows, mine), *(beside(self.rows, mine) if mine else verdict(self.rows))]
        told += [*out(self.setting, self.rows), *setting_words.doubts(self.fidelity, self.setting.cost.profile)]
        return told if self.grouped else [*told, UNGROUPED]

    def as_json(self) -> dict[str, Any]:
        """As `odcsim rl --json` prints it."""
        told = {"inputs": self._inputs(), "held_fixed": fixed(self.setting), "fidelity": self.fidelity}
        return {"schema": 1, **told, "basis": "one step, on average", "rows": [row.as_json() for row in self.rows]}

    def records(self) -> list[dict[str, Any]]:
        """Its rows, flat."""
        return [row.as_json() for row in self.rows]

    def _glance(self) -> Glance:
        setting, batch = self.setting, self.batch
        step = f"{batch.prompts:,} prompts x {batch.rollouts} rollouts in {counted(batch.updates, 'update')}"
        usual = self.row(*REFERENCE)
        rows = [
            (r.dealer, r.way, *(f"{s:,.1f} s" for s in (r.trained, r.passed, r.seconds)),
             f"{usual.seconds / r.seconds:.2f}{' (does not fit)' if r.memory_fits is False else ''}")
            for r in sorted(self.rows, key=lambda row: (row.memory_fits is False, row.seconds))
        ]  # fmt: skip
        about = f"{setting_words.named(setting)}, {step}"
        return Glance("RolloutSteps", about, self.sentences(), HEAD, rows)

    def _inputs(self) -> dict[str, Any]:
        batch, around = self.batch, self.around
        drawn = {name: getattr(batch, name) for name in ("prompts", "rollouts", "updates", "steps")}
        beside = {"forward_passes": around.passes, "critic": around.critic, "generation_seconds": around.generation}
        return {**inputs(self.setting), "grouped": self.grouped, **drawn, **beside}


def rl(
    trace: Trace | str | os.PathLike[str] | ArrayLike,
    model: str,
    *,
    prompts: int,
    rollouts: int,
    updates: int = 1,
    steps: int = 20,
    forward_passes: int = 2,
    critic: bool = False,
    generation_seconds: float | str = 0.0,
    **words: Any,
) -> RolloutSteps:
    """A whole step of reinforcement learning: `prompts` times `rollouts` samples, drawn by groups, trained on in
    `updates`, with passes without backward and generation beside it. `words`: the other fields of a question,
    `devices=4`, and of its recipe."""
    own = {"prompts": prompts, "rollouts": rollouts, "updates": updates, "steps": steps}
    given = RL.words({"trace": trace, "model": model} | words, (*own, "forward_passes", "generation_seconds"))
    batch = RolloutBatch(**{name: checked(name, value, COUNT) for name, value in own.items()})
    around = Around(
        checked("forward_passes", forward_passes, PASSES), checked("critic", critic, FLAG), _time(generation_seconds)
    )
    return stepped(read(asked(given)), batch, around)


rl.__signature__ = RL.signature(rl)  # type: ignore[attr-defined]


def stepped(
    question: Question,
    batch: RolloutBatch,
    around: Around,
    *,
    advance: Callable[[], None] = lambda: None,
    limited: Callable[[Question], Setting] = setting_of,
) -> RolloutSteps:
    """Of a question whose lengths are read. `advance` is called once for each of the `pieces` of the work; `limited`
    makes the setting, for who tells how far it is with that."""
    recorded: Trace = question.trace
    if (trainer := stock.known(question.trainer)) is not None:
        stock.check(recorded, question.recipe, trainer)
    question = replace(question, recipe=_of_policy(question))
    drawn: dict[str, Any] = {
        "minibatch": batch.share(question.devices),
        "minibatches": batch.steps * batch.updates,
        "in_order": True,
    }
    check_drawn(batch.samples // batch.updates, batch.steps * batch.updates, recorded.name)
    setting = limited(replace(question, trace=pilot.run(recorded, batch, question.seed), **drawn))
    rows, known = steps(setting, batch.updates, around, advance=advance), recorded.group is not None
    about = _draws(recorded, setting, batch)
    return RolloutSteps(setting, batch, around, tuple(sampled(row, about) for row in rows), known)


def _draws(recorded: Trace, setting: Setting, batch: RolloutBatch) -> Draws:
    """Prompts are what is drawn: siblings come together, and are alike."""
    prompts, size = pilot.met(recorded, batch, setting.seed)
    work = np.concatenate([minibatch.weights for minibatch in drawn(setting)])
    every = list(work.reshape(*prompts.shape, -1).sum(axis=2))
    file, siblings = in_file(recorded, setting.cost), recorded.siblings
    return draws(list(prompts), every, size, file=file, siblings=siblings, whole=setting.whole)


def _of_policy(question: Question) -> Recipe:
    """A loss in chunks is a policy's here, where no profile holds what ran."""
    chunks = question.recipe.value("loss") == "chunked" and not question.profile
    return question.recipe.by(loss="policy") if chunks else question.recipe


def _time(given: float | str) -> float:
    try:
        value = seconds(given) if isinstance(given, str) else given
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--generation-seconds holds '{given:.40}': {error}", fix=TIME) from None
    return float(checked("generation_seconds", value, AMOUNT, TIME))
