"""One step of a trainer's configuration, priced as it is: its microbatches as its own rule makes them, what they take,
and whether they fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcsim import catalog
from odcsim.decide import room, stock
from odcsim.decide.asking import setting_of
from odcsim.decide.evaluate import evaluate
from odcsim.decide.rl import DEALERS, OF_TRAINERS, Around, Dealer, RolloutBatch, RolloutStep, Steps
from odcsim.decide.setting import Setting, assign, draw_minibatches
from odcsim.errors import InputError
from odcsim.neighbours.neighbour import (
    CUTS,
    DROPS,
    ENDS,
    IN_BATCHES,
    IN_FULL_ROWS,
    IN_PADDED,
    IN_ROWS,
    ChosenRow,
    Neighbour,
)
from odcsim.neighbours.values import RunEnds
from odcsim.question import Question, question_of
from odcsim.reading.limits import within
from odcsim.results.capacity import Need
from odcsim.results.summary import Row
from odcsim.schedule import Schedule
from odcsim.trace import DPO, GRPO, Trace

STEPS, FEW = 60, 6  # that stand for all; and to try a change on
ROLLOUT_STEPS = 8


@dataclass(frozen=True, slots=True)
class PricedStep:
    """What a configuration's step comes to, of all its updates."""

    row: ChosenRow
    setting: Setting  # with the samples of an update, and the limit of a microbatch
    usual: Row  # of an update, as tables have it
    seconds: float
    low: float  # at the ends of the interval
    high: float
    training: float
    passes: float  # without backward
    generation: float
    tokens: float  # that it trains on
    padding: float  # tokens that are computed, over those
    counts: tuple[int, int]  # microbatches of a rank, at least and at most
    fullest: int  # tokens of a microbatch, of the longest samples that there are
    fits: int  # tokens of one that has room; as many where nobody knows of memory
    need: Need  # of the fullest
    first_over: float  # steps until one lacks room, on average; 0: none does

    @property
    def per_token(self) -> float:
        """Seconds, by which configurations of unlike steps compare."""
        return self.seconds / self.tokens

    @property
    def over_sample(self) -> int:
        """Tokens of a sample from which on its microbatch lacks room; 0: that is not up to one sample."""
        each = self.row.each or 1
        return self.fits // each if self.row.balancer == IN_PADDED or each == 1 else 0


@dataclass(frozen=True)
class Surroundings:
    """What is the same for a configuration and all of its changes."""

    trainer: Neighbour
    trace: Trace
    words: Mapping[str, Any]  # of a question: GPU, model, network, seed, price
    where: str = ""  # the configuration stands
    links: float = 1.0  # times as slow as they are known to be

    def price(self, row: ChosenRow, count: int = STEPS) -> PricedStep:
        """`count`: of steps that are simulated."""
        if row.kind == GRPO:
            return self._price_rollouts(row, min(count, ROLLOUT_STEPS))
        setting = self.setting(row, count)
        check_enough(setting)
        found = evaluate(setting, [(row.balancer, row.recipe.sync)])
        one, schedules = found.rows[0], self._schedules(setting, row, count)
        of_reference = one.reference_seconds / count if row.kind == DPO and row.passes else 0.0
        training, share = one.makespan_seconds / count, one.model_low / one.makespan_seconds
        seconds = training + of_reference
        ends = seconds * share, seconds * one.model_high / one.makespan_seconds
        parts = seconds, *ends, training, of_reference, 0.0
        drawn = sum(int(setting.trace.take(np.array(s.samples)).sum()) for s in schedules)
        return self._priced(row, setting, one, parts, schedules, drawn)

    def setting(self, row: ChosenRow, count: int) -> Setting:
        """Of supervised training: the samples of its steps, and what limits a microbatch."""
        trace = self.cut(row)
        setting = self._at_links(setting_of(self.question(row, trace, count), limited=False))
        if row.balancer in (IN_ROWS, IN_FULL_ROWS):
            rule = next(rule for rule in self.trainer.rules if rule.rows)
            trace = stock.packed(trace, rule, row.max_tokens, setting.seed)
        return _limited(replace(setting, trace=trace), row)

    def _at_links(self, setting: Setting) -> Setting:
        before = setting.cost.cluster
        links, cards = before.link_bandwidth / self.links, before.nic_bandwidth / self.links
        cluster = replace(before, link_bandwidth=links, nic_bandwidth=cards)
        return replace(setting, cost=replace(setting.cost, cluster=cluster))

    def question(self, row: ChosenRow, trace: Trace, count: int) -> Question:
        known = {"trace": trace, "devices": row.devices, "minibatch": row.minibatch, "recipe": row.recipe}
        more = {"trainer": self.trainer.name, "minibatches": count, "group_by_length": row.group_by_length}
        return question_of({"model": model_of(row.model, self.where), **known, **more, **self.words})

    def cut(self, row: ChosenRow) -> Trace:
        """Its samples as the trainer takes them."""
        if not row.longest or self.trace.longest <= row.longest:
            return self.trace
        if row.cutting == ENDS:
            problem = f"a sample has {self.trace.longest:,} tokens, and over {row.longest:,} the run ends"
            raise RunEnds(problem, where=self.trace.name, fix="raise the limit, or have samples cut")
        how = {CUTS: "truncate", DROPS: "drop_over"}[row.cutting]
        return within(self.trace, **{how: row.longest})[0]

    def _schedules(self, setting: Setting, row: ChosenRow, count: int) -> Sequence[Schedule]:
        few = replace(setting, minibatches=min(count, STEPS))
        return assign(few, row.balancer, draw_minibatches(few)).schedules

    def _price_rollouts(self, row: ChosenRow, count: int) -> PricedStep:
        """A whole step: its answers are written, passed, and trained on in updates."""
        if row.samples * row.updates % row.rollouts:
            problem = f"{row.samples} samples of an update are no whole number of prompts with {row.rollouts} answers"
            raise RunEnds(problem, fix="give a multiple")
        batch = RolloutBatch(row.samples * row.updates // row.rollouts, row.rollouts, row.updates, count)
        around = Around(row.passes, row.critic, self.words.get("generation"), row.engine_gpus or None)
        words = {name: value for name, value in self.words.items() if name != "generation"}
        asked = replace(self, words=words).question(row, self.cut(row), count)
        loss = asked.recipe.value("loss")
        asked = replace(asked, recipe=asked.recipe.by(loss="policy" if loss == "chunked" else loss))
        steps = Steps(asked, batch, around, lambda q: _limited(self._at_links(setting_of(q, limited=False)), row))
        step: RolloutStep = steps.by(dealer_of(row))[0]
        low, high = (end / step.row.makespan_seconds for end in (step.row.model_low, step.row.model_high))
        seconds = step.training + step.forward + step.generation
        parts = seconds, seconds * low, seconds * high, step.training, step.forward, step.generation
        schedules = dealer_of(row).schedules(steps.setting, steps.minibatches, row.updates)
        drawn = sum(int(one.lengths.sum()) for one in steps.minibatches)
        return self._priced(row, steps.setting, step.row, parts, schedules, drawn)

    def _priced(
        self,
        row: ChosenRow,
        setting: Setting,
        one: Row,
        parts: Sequence[float],
        schedules: Sequence[Schedule],
        drawn: int,
    ) -> PricedStep:
        """`drawn`: tokens of all schedules, without padding."""
        held = sum(int(s.sizes.sum()) for s in schedules)
        counts = [len(device) for s in schedules for device in s.devices]
        cost, longest = room.under(setting.cost, row.recipe.sync), setting.trace.longest
        most = max(s.fullest for s in schedules)
        most = max(most, setting.limit) if row.balancer in (IN_PADDED, IN_BATCHES) else most
        limit = cost.cluster.memory_bytes
        fits = room.fullest(cost, longest, limit, most) if limit else most
        need = Need(room.needed(cost, most, longest).total, limit or None)
        first = _first_over(setting, row, schedules, fits) if fits < most else 0.0
        tokens = drawn / len(schedules) * row.updates
        seconds, low, high, training, passes, generation = parts
        return PricedStep(
            row, setting, one, seconds, low, high, training, passes, generation, tokens, held / drawn,
            (min(counts), max(counts)), most, fits, need, first,
        )  # fmt: skip


def check_enough(setting: Setting) -> None:
    """A step takes samples that are there."""
    if (there := setting.trace.bundles.size) < setting.batch:
        what = "rows" if setting.trace.bundle is not None and setting.trace.kind != DPO else "samples"
        problem = f"a step takes {setting.batch:,} {what}, and the data make {there:,}"
        raise RunEnds(problem, where=setting.trace.name, fix="give all of the data, or ask for smaller steps")


def _limited(setting: Setting, row: ChosenRow) -> Setting:
    """With the limit of a microbatch, of who counts samples that of the longest ones."""
    if row.balancer not in (IN_PADDED, IN_BATCHES):
        longest, limit = setting.trace.fullest, row.max_tokens
        if limit and longest > limit:
            problem = f"a sample has {longest:,} tokens, and a microbatch holds {limit:,}"
            raise RunEnds(problem, where=setting.trace.name, fix="the run ends there: raise the limit")
        return replace(setting, max_tokens=limit, each=0)
    padded = row.balancer == IN_PADDED
    return replace(setting, max_tokens=stock.worst(setting.trace, row.each, padded=padded), each=row.each)


def _first_over(setting: Setting, row: ChosenRow, schedules: Sequence[Schedule], fits: int) -> float:
    """Steps until a microbatch has more tokens than there is room for: as often as among those that were drawn, or as
    often as such a sample comes."""
    share = sum(s.fullest > fits for s in schedules) / len(schedules)
    if not share:
        each = (row.each or 1) if row.balancer == IN_PADDED else 1
        trace = setting.trace.bundles
        over = trace.lengths > fits // each
        among = float(over.mean() if trace.counts is None else trace.counts[over].sum() / trace.counts.sum())
        share = 1 - (1 - among) ** setting.batch
    return 1 / share if share else 0.0


def dealer_of(row: ChosenRow) -> Dealer:
    """By which the trainer deals the answers of a step."""
    own = {"verl": "rollout"}.get(row.balancer, row.balancer)
    known = next((dealer for dealer in (*DEALERS, *OF_TRAINERS) if dealer.name == own and dealer.trainer), None)
    if known is not None:
        return replace(known, syncs=(row.recipe.sync,))
    return Dealer(row.balancer, (row.recipe.sync,))


def model_of(name: str, where: str = "") -> str:
    """As the catalogue has it: by its own name, or by the last of a path."""
    for one in (name, name.rstrip("/").replace("\\", "/").rpartition("/")[2]):
        try:
            catalog.model(one)
        except InputError:
            continue
        return one
    fix = "name one of 'odcsim catalog list', or its config.json, with --model"
    raise InputError(f"the model is {name or 'not said'}", where=where, fix=fix)
