"""What would make a run cheaper: its question with one thing changed, answered again.

A figure is what the same command prints of the changed question. A lever is named where it costs notably less, and
where it needs no more of a GPU's memory than estimates can be trusted for.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from odcsim.answer import Result
from odcsim.decide import stock
from odcsim.decide.advice import Advice, Offer, offer
from odcsim.decide.asking import setting_of
from odcsim.decide.cause import IDLE, Cause, cause_of
from odcsim.decide.comparison import Comparison
from odcsim.decide.decision import NOTABLE, decide
from odcsim.decide.evaluate import evaluate
from odcsim.decide.remedies import WHOLE, lost
from odcsim.decide.rl import Around, RolloutBatch, RolloutSteps, one_row
from odcsim.decide.setting import Setting
from odcsim.decide.way import Way
from odcsim.decide.whole_run import WholeRun
from odcsim.errors import InputError
from odcsim.program import SHARDINGS
from odcsim.question import TERMS, Question
from odcsim.reading.limits import within
from odcsim.reading.stats import quantiles
from odcsim.recipe import RECOMPUTE
from odcsim.results import capacity, summary
from odcsim.results.summary import Row, scaled
from odcsim.support.values import expect

BY_LENGTH, BATCH, GPUS, SHARED, CUT = "by length", "batch", "GPUs", "shared", "cut"
LIMIT, SHARDING, AGAIN = "limit", "sharding", "recompute"  # an advice has searched these
PROMPTS, UPDATES, ENGINE = "prompts", "updates", "engine"  # of a step of rollouts
TIMES = (2, 4)  # as large a batch, and as few GPUs
SPENT = ("makespan_seconds", "gpu_hours", "dollars", "idle", "memory_bytes", "memory_fits")  # of a row, in JSON
SHORT = 0.99  # of samples are no longer than a cutoff that is tried


@dataclass(frozen=True, slots=True)
class Variant:
    """A question with one thing changed."""

    kind: str
    flags: str  # as a command line has it
    question: Question
    lost: str = ""  # what a cutoff costs in samples and tokens
    batch: RolloutBatch | None = None  # of steps of rollouts
    around: Around | None = None


@dataclass(frozen=True, slots=True)
class Lever:
    """A change, and the row of as many samples, or of the whole run, that it makes."""

    change: Variant
    row: Row

    def times(self, base: Row) -> float:
        """Its cost over that of the run as it is."""
        return self.row.gpu_hours / base.gpu_hours


@dataclass(frozen=True, slots=True, repr=False)
class Levers(Result):
    """`found`: cheapest first. `tried`: what brings nothing, or does not fit."""

    base: Row  # the run as it is
    workers: int
    basis: str  # what rows spend is of
    cause: Cause | None  # None where devices hardly idle, or nothing fits memory: then nothing was tried
    found: tuple[Lever, ...] = ()
    tried: tuple[Variant, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As `--json --levers` prints it."""
        cause = None if self.cause is None else asdict(self.cause)
        base = {name: getattr(self.base, name) for name in SPENT}
        return {"basis": self.basis, "cause": cause, "base": base, "found": self.records(),
                "tried": [change.flags for change in self.tried]}  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """A row for each change that costs less."""
        return [
            {"change": lever.change.flags, "kind": lever.change.kind, "lost": lever.change.lost,
             "times": lever.times(self.base), **{name: getattr(lever.row, name) for name in SPENT}}
            for lever in self.found
        ]  # fmt: skip


def levers(result: Comparison | Advice | RolloutSteps) -> Levers:
    """Of what a comparison or steps of rollouts come to, or of what an advice says to rent."""
    expect(result, (Comparison, Advice, RolloutSteps), "result", "odcsim.compare, odcsim.advise or odcsim.rl")
    if isinstance(result, RolloutSteps):
        return _of_rollouts(result)
    return _of_comparison(result) if isinstance(result, Comparison) else _of_advice(result)


def _of_advice(advice: Advice) -> Levers:
    wish, rent = advice.wish, advice.nearest
    if rent is None:
        raise InputError("nothing here can be rented", fix="the advice says what would")
    base, workers = rent.row, rent.chosen.way.cost.workers
    found = Levers(base, workers, advice.basis, cause_of(base, workers))
    if found.cause is None:
        return found

    asked = rent.chosen.way.setting.question
    gpu = asked.gpu if asked and asked.gpu else rent.gpu  # as it was asked for: perhaps a file

    def changed(change: Variant) -> Row | None:
        one = offer(replace(wish, question=change.question, batches=()), gpu, change.question.devices)
        return one.row if isinstance(one, Offer) else None

    question = replace(wish.on(gpu, rent.devices), global_batch=rent.batch or wish.global_batch)
    kinds = (BY_LENGTH, *(() if wish.batches else (BATCH,)), GPUS, SHARED, CUT)
    every = changes(question, kinds)
    return _try(found, (one for one in every if one.kind != GPUS or one.question.devices not in wish.devices), changed)


def _of_comparison(comparison: Comparison) -> Levers:
    setting, chosen = comparison.setting, decide(comparison).chosen
    workers = setting.cost.workers
    cause = None if chosen.memory_fits is False else cause_of(chosen, workers)
    found = Levers(comparison.spent(chosen), workers, comparison.basis, cause)
    question = question_of(setting)
    if found.cause is None or question is None:
        return found

    def changed(change: Variant) -> Row | None:
        other = _alike(setting, setting_of(change.question))
        way = Way(other, *chosen.pair)
        if change.kind == SHARED and way.one_sided:  # which nobody runs
            way = Way(other, *summary.REFERENCE)
        if chosen.made is not None:
            way = min(stock.choose(other), key=stock.pace)
        one = evaluate(way.setting, [way.pair], memory_limit=comparison.memory_limit)
        if setting.epochs is not None:
            return WholeRun(one, setting.epochs).shown(one.rows[0])
        profile = setting.cost.profile
        return scaled(one.rows[0], _samples(chosen) / _samples(one.rows[0]), (profile.low, profile.high))

    kinds: tuple[str, ...] = (BY_LENGTH, BATCH, GPUS, SHARED, LIMIT, CUT, AGAIN, SHARDING)
    return _try(found, changes(question, kinds), changed)


def _of_rollouts(steps: RolloutSteps) -> Levers:
    """Idle time is of training; what is saved, of whole steps with as many rollouts."""
    best, batch, question, workers = steps.best, steps.batch, steps.question, steps.setting.cost.workers
    total = steps.total_steps
    basis = f"as many rollouts as {f'{total:,} steps have' if total else 'a step has'} (idle time: of training)"
    cause = None if best.row.memory_fits is False else cause_of(best.row, workers)
    found = Levers(steps.whole(best.row), workers, basis, cause)
    if best.row.memory_fits is False:
        return found

    def changed(change: Variant) -> Row | None:
        other = change.batch or batch
        row = one_row(change.question, other, change.around or steps.around, best.row.pair).row
        low, high = row.model_low / row.makespan_seconds, row.model_high / row.makespan_seconds
        return steps.whole(scaled(row, batch.samples / other.samples, (low, high)))

    kinds = (SHARED, LIMIT, CUT, AGAIN, SHARDING)
    given = bool(steps.around.generation)  # which holds for these prompts on these GPUs alone
    every = (one for one in _of_steps(steps) if one.kind == UPDATES or not given)
    rest = kinds if cause else (CUT,)
    return _try(found, chain(every, () if given else changes(question, rest)), changed)


def _of_steps(steps: RolloutSteps) -> Iterator[Variant]:
    """Larger engines, fewer GPUs, more prompts in a step, fewer updates on them."""
    question, batch, gpus = steps.question, steps.batch, steps.generation.engine_gpus
    for times in TIMES:
        if gpus and question.devices % (times * gpus) == 0:
            around = replace(steps.around, tensor_parallel=times * gpus)
            yield Variant(ENGINE, f"--tensor-parallel {times * gpus}", question, around=around)
    for times in TIMES:
        if question.devices % times == 0:
            fewer = question.devices // times
            yield Variant(GPUS, f"--devices {fewer}", replace(question, devices=fewer))
    for times in TIMES:
        prompts = times * batch.prompts
        yield Variant(PROMPTS, f"--prompts {prompts}", question, batch=replace(batch, prompts=prompts))
    for updates in dict.fromkeys((batch.updates // 2, 1)):
        if 0 < updates < batch.updates and batch.updates % updates == 0:
            yield Variant(UPDATES, f"--updates {updates}", question, batch=replace(batch, updates=updates))


def _samples(row: Row) -> float:
    """That its minibatches hold."""
    return row.samples_per_second_per_device * row.gpu_hours * 3600


def _try(found: Levers, every: Iterator[Variant], changed: Callable[[Variant], Row | None]) -> Levers:
    """Of several values of a choice the cheapest alone; of batches and of GPUs each, since less of a change may do.
    Fewer GPUs are tried only while they still idle."""
    good, rest, busy = list[Lever](), list[Variant](), False
    for change in every:
        if busy and change.kind == GPUS:
            continue
        try:
            row = changed(change)
        except InputError:  # nobody can run it
            row = None
        fits = row is not None and capacity.level(row) <= capacity.level(found.base)
        busy = busy or (change.kind == GPUS and row is not None and row.idle < IDLE)
        if row is None or not fits or row.gpu_hours * NOTABLE > found.base.gpu_hours:
            rest.append(change)
        else:
            good.append(Lever(change, row))
    good.sort(key=lambda lever: lever.row.gpu_hours)
    first = {lever.change.kind: lever for lever in reversed(good)}
    kept = [lever for lever in good if lever.change.kind in (BATCH, PROMPTS, GPUS) or first[lever.change.kind] is lever]
    return replace(found, found=tuple(kept), tried=tuple(rest))


def question_of(setting: Setting) -> Question | None:
    """The question that a setting came of, with what has been said since; None where nobody asked one."""
    question = setting.question
    if question is None:
        return None
    terms: dict[str, Any] = {name: getattr(setting, name) for name in TERMS} | {"trace": setting.trace}
    if question.global_batch:
        terms["global_batch"] = setting.batch
    else:
        terms["minibatch"] = setting.minibatch
    return replace(question, **terms, max_tokens=stock.given_limit(setting) or question.max_tokens)


def _alike(setting: Setting, other: Setting) -> Setting:
    """The other on machines as the setting has them, by the factor that a run was measured to take, where it has
    those."""
    cost, profile = other.cost, setting.cost.profile
    if profile.factor and not cost.profile.factor:
        longer = cost.profile.stretched(profile.factor)
        low, high, origin = profile.low, profile.high, profile.origin
        longer = replace(longer, fidelity=profile.fidelity, low=low, high=high, origin=origin)
        cost = replace(cost, profile=longer)
    return replace(other, cost=replace(cost, cluster=replace(setting.cost.cluster, gpus=cost.cluster.gpus)))


def changes(question: Question, kinds: tuple[str, ...]) -> Iterator[Variant]:
    """Everything that is tried, by kind."""
    for kind in kinds:
        yield from (Variant(kind, *one) for one in CHANGES[kind](question))


Changed = Iterator[tuple[str, Question] | tuple[str, Question, str]]


def _by_length(question: Question) -> Changed:
    if not question.group_by_length and not question.in_order:
        yield "--group-by-length", replace(question, group_by_length=True)


def _batch(question: Question) -> Changed:
    share, batch = question.share, question.global_batch
    for times in TIMES:
        if times * share * question.workers <= question.trace.bundles.size:
            if batch:
                yield f"--global-batch {times * batch}", replace(question, global_batch=times * batch)
            else:
                yield f"--minibatch {times * share}", replace(question, minibatch=times * share)


def _gpus(question: Question) -> Changed:
    """Fewer, for the same batch."""
    for times in TIMES:
        fewer = question.devices // times
        if question.devices % times:
            continue
        if question.global_batch:
            yield f"--devices {fewer}", replace(question, devices=fewer)
        else:
            share = question.share * times
            yield f"--devices {fewer} --minibatch {share}", replace(question, devices=fewer, minibatch=share)


def _shared(question: Question) -> Changed:
    """Sequences that several GPUs share, for the same batch."""
    for each in stock.groups(setting_of(question, limited=False)):
        one, share = replace(question, recipe=question.recipe.by(context=each)), question.share * each
        if question.global_batch:
            yield f"--context {each}", one
        else:
            share //= question.recipe.context
            yield f"--context {each} --minibatch {share}", replace(one, minibatch=share)


def _limit(question: Question) -> Changed:
    if question.max_tokens is not None:
        yield "no --max-tokens", replace(question, max_tokens=None)


def _cut(question: Question) -> Changed:
    trace = question.trace
    at = int(quantiles(trace, [SHORT])[0]) // WHOLE * WHOLE
    if 0 < at < trace.longest:
        yield f"--truncate {at}", replace(question, trace=within(trace, at)[0]), lost(trace, at)


def _sharding(question: Question) -> Changed:
    cost = setting_of(question, limited=False).cost
    for how in SHARDINGS:
        if how != cost.recipe.sharding and (cost.cluster.nodes > 1 or how != "hybrid"):
            yield f"--sharding {how}", replace(question, recipe=question.recipe.by(sharding=how))


def _again(question: Question) -> Changed:
    for how in RECOMPUTE:
        if question.recipe.recompute != how:
            yield f"--recompute {how}", replace(question, recipe=question.recipe.by(recompute=how))


CHANGES: dict[str, Callable[[Question], Changed]] = {
    BY_LENGTH: _by_length,
    BATCH: _batch,
    GPUS: _gpus,
    SHARED: _shared,
    LIMIT: _limit,
    CUT: _cut,
    SHARDING: _sharding,
    AGAIN: _again,
}
