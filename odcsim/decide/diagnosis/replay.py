"""A run that exists as a setting of the spine, and its own steps through the same evaluation as every other way.

What a step lost to its host (loader, collector, launches, its start and end) no schedule changes: it is added to all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from odcsim import catalog
from odcsim.cluster import cluster_of, read_cluster
from odcsim.cost import Cost
from odcsim.decide.asking import question_by
from odcsim.decide.diagnosis import seconds
from odcsim.decide.diagnosis.deals import RanDeals, deals_of
from odcsim.decide.diagnosis.outcome import Breakdown
from odcsim.decide.diagnosis.seconds import RanSeconds
from odcsim.decide.evaluate import Evaluation, Pair, evaluate
from odcsim.decide.setting import Drawn, Setting, cluster_for
from odcsim.decide.sharding import as_ran
from odcsim.model import Model
from odcsim.observed.run import SeenRun
from odcsim.question import TERMS, Question
from odcsim.results.intervals import RUN, interval
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.timeline import Floats

AS_IT_RAN = "native"  # what a row of the run's own deal is called: samples as they came
BESIDE = ("loader", "collector", "launch", "edges")  # parts of a step that stay whatever is dealt
SLOW = 1.02  # times as long as others, from which on a rank is slow
MENDED = 0.9  # of a step, at most
HIDDEN = 0.03  # of the step, by which a replay has to be off before it is taken to prefetch nothing
OFF = 0.1  # of the measured step, beyond which a replay is hardly that run


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The run as a setting, and what its own steps come to there."""

    run: SeenRun
    found: Breakdown
    deals: RanDeals
    seconds: RanSeconds
    setting: Setting  # its limit is what ran
    measured: Floats = field(repr=False)  # seconds of each step
    beside: Floats = field(repr=False)  # of them what no schedule changes
    evaluation: Evaluation = field(repr=False)
    sized: bool  # the model is known, and with it what memory is for
    asked_limit: int = 0  # of a microbatch; 0: nobody asked for one
    trainer: str | None = None  # whose run it is, as somebody said

    @property
    def ran(self) -> Floats:
        """Seconds of each step as it ran, simulated."""
        return self.evaluation.usages[0].makespan + self.beside

    @property
    def replayed(self) -> float:
        """Simulated over measured."""
        return float(self.ran.sum() / self.measured.sum())

    @property
    def fits(self) -> bool:
        """Whether estimates of memory say of what ran that it can."""
        return self.sized and self.evaluation.rows[0].memory_fits is True

    def priced(self, schedules: Sequence[Schedule], setting: Setting | None = None) -> Evaluation:
        """These schedules of its steps, evaluated."""
        return _evaluated(setting or self.setting, schedules, self.run.sync)

    def gain(self, other: Floats, evaluation: Evaluation) -> tuple[float, float, float]:
        """How many times as fast steps are that take so long, with a 90 % interval over steps."""
        ran, step = self.ran, float(self.measured.sum())
        gain = float(ran.sum() / other.sum())
        low, high = interval(ran, other, evaluation.draws, RUN)
        if abs(self.replayed - 1) > OFF:  # the seconds saved may be as many as simulated, or as large a share
            saved = min(float(ran.sum() - other.sum()), MENDED * step)
            absolute = step / (step - saved)
            low, high = min(low, absolute), max(high, absolute)
        most = self.most(evaluation)
        return min(gain, most), min(low, gain, most), min(max(high, gain), most)

    def most(self, evaluation: Evaluation) -> float:
        """No step is shorter than its compute, which is as much as was seen but for what the way itself changes."""
        share = self.found.share("compute") + self.found.share("padding")
        seconds = []  # of a token
        for of in (self.evaluation, evaluation):
            [row], [usage] = of.rows, of.usages
            seconds.append(float(usage.compute.mean()) / (row.tokens_per_second * row.makespan_seconds))
        ran, other = seconds
        return ran / (share * other) if share * other else np.inf

    def mended(self, lost: Floats) -> tuple[float, float, float]:
        """Of steps that lose so much less, which needs no simulation."""
        left = self.measured - np.minimum(lost, MENDED * self.measured)
        gain = float(self.measured.sum() / left.sum())
        low, high = interval(self.measured, left, self.evaluation.draws, RUN)
        return gain, min(low, gain), max(high, gain)


def replay(run: SeenRun, breakdown: Breakdown, words: Mapping[str, Any]) -> Replay:
    paces = {rank.rank: rank.pace for rank in breakdown.ranks if rank.pace > SLOW}
    given = {name: value for name, value in words.items() if value is not None}
    deals = deals_of(run, paces, int(given.get("seed", 0)))
    question = as_ran(question_by({**given, "trace": deals.trace, "devices": run.ranks}))
    model = catalog.model(question.model) if question.model else seconds.plain(run)
    known = _cost(run, deals, question, model, paces)
    terms = {name: getattr(question, name) for name in TERMS} | {"in_order": True, "minibatches": len(deals.places)}
    terms |= {"trainer": None} if deals.whole else {}  # its settings would say tokens, which are made of seconds
    share = max(1, round(deals.trace.size / len(deals.places) / run.ranks))
    setting = Setting(
        deals.trace, known[0], share, deals.limit, model_asked=question.model, stepped=True, **terms
    )  # fmt: skip
    beside = sum((_part(breakdown, name, deals) for name in BESIDE), start=np.zeros(len(deals.places)))
    if not deals.unseen:
        beside = beside + _part(breakdown, "untold", deals)
    measured = np.array([run.steps[i].seconds for i in deals.places])
    # Transfers beside compute, as FSDP2 has them; or each before its compute, where steps took so much longer.
    both = [replace(setting, cost=setting.cost.by(prefetch=prefetch)) for prefetch in ("fsdp2", "none")]
    ran = [_evaluated(one, deals.padded, run.sync) for one in both]
    off, least = (abs(float(of.usages[0].makespan.sum() / (measured - beside).sum()) - 1) for of in ran)
    apart = int(off > HIDDEN and least < off / 2)
    setting, evaluation = both[apart], ran[apart]
    limit, trainer = question.max_tokens or 0, question.trainer
    return Replay(
        run, breakdown, deals, known[1], setting, measured, beside, evaluation, bool(question.model), limit, trainer
    )


def _part(breakdown: Breakdown, name: str, deals: RanDeals) -> Floats:
    by_step = breakdown.by_step.get(name)
    return np.zeros(len(deals.places)) if by_step is None else np.asarray(by_step, float)[list(deals.places)]


def _cost(
    run: SeenRun, deals: RanDeals, question: Question, model: Model, paces: Mapping[int, float]
) -> tuple[Cost, RanSeconds]:
    """By the run's own seconds, on the machines that were asked for, or else on one node of what ran."""
    gpu = catalog.gpu(question.gpu) if question.gpu else None
    usual = None if gpu is None else cluster_of(gpu, run.ranks, question.devices_per_node)
    if usual is not None and question.cluster:
        usual = read_cluster(question.cluster, usual)
    slower = usual.one_sided_slowdown if usual is not None and usual.nodes > 1 else 1.0
    recipe = question.recipe.by(sync=run.sync)
    holders = usual.devices_per_node if usual is not None and usual.nodes > 1 and recipe.sharding == "hybrid" else 0
    name, rates = (gpu.name, bool(question.model)) if gpu else (model.name, False)
    of = seconds.measured(run, deals, model, recipe, paces, name, slower, holders, rates=rates)
    cluster = usual or cluster_for(None, of.profile, run.ranks, None, question.cluster)
    known = replace(cluster, slow=tuple(sorted(paces.items())))
    if not question.model:
        known = replace(known, memory_bytes=None)
    return Cost(model, of.profile, known, recipe, question.on_demand_cost), of


def _evaluated(setting: Setting, schedules: Sequence[Schedule], sync: str) -> Evaluation:
    """The steps' own schedules in the place of a balancer's."""
    numbers = setting.trace.step
    assert numbers is not None

    def plan(setting: Setting, balancer: str, minibatches: Sequence[Drawn]) -> ScheduleFile:
        header = Header(balancer, setting.cost.model.name, "", setting.limit, setting.cost.workers)
        every = [int(numbers[minibatch.unassigned.samples[0]]) for minibatch in minibatches]
        return ScheduleFile(header, tuple(schedules[number] for number in every))

    pair: Pair = AS_IT_RAN, sync
    return evaluate(setting, [pair], plan=plan)
