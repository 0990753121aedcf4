"""What steps of reinforcement learning come to, in sentences and tables."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from odcsim.answer import Answer, AnswerTable
from odcsim.decide.decision import NOTABLE
from odcsim.decide.levers import Levers
from odcsim.decide.remedies import remedies
from odcsim.decide.rl import RolloutBatch, RolloutStep, RolloutSteps
from odcsim.program import MEETING
from odcsim.results import capacity
from odcsim.results.summary import Row
from odcsim.say import lever_words, setting_words
from odcsim.say.comparison_words import would_be
from odcsim.say.row_words import memory
from odcsim.support.numbers import counted, duration, finer, from_to, money

REFERENCE, VERL = ("packed", MEETING), ("rollout", MEETING)  # what needs no rule; and verl's rule
PILOT = 4  # steps' worth of rollouts: fewer say little of the longest
LONG = 0.1  # of generation's time: a tail that is worth a word
UNGROUPED = (
    "No groups are known: rollouts of a prompt are drawn independently, which balances devices more than real ones."
)


def size(batch: RolloutBatch) -> str:
    return f"{batch.prompts:,} prompts x {batch.rollouts} rollouts in {counted(batch.updates, 'update')}"


def question(result: RolloutSteps) -> str:
    """What was asked, above the table."""
    setting, cost, batch = result.setting, result.setting.cost, result.batch
    by = f" by {setting.trainer}" if setting.trainer else ""
    model = f"{cost.model.name}{cost.recipe.full_words}{by} on {cost.cluster.gpus} x {cost.profile.gpu}"
    steps = counted(batch.steps, "step")
    return f"{model}, {size(batch)}, {setting_words.limit(setting)}, {steps}; figures are of one step"


def answer(result: RolloutSteps, levers: Levers | None = None) -> Answer:
    setting = result.setting
    headline, *rest = sentences(result)
    lengths = [setting_words.lengths(setting.trace.origin)] if setting.trace.origin else []
    rests = [*rest, setting_words.fixed(setting, by=""), *lengths, f"Cost: {setting.cost.profile.origin}."]
    about = f"{setting_words.named(setting)}, {size(result.batch)}"
    tables = [table(_rows(result)), *split_tables(result)]
    return lever_words.beside(Answer("RolloutSteps", about, headline, question(result), tables, rests), levers)


def split_tables(result: RolloutSteps) -> list[AnswerTable]:
    """Who generates: all GPUs in turn with training, or some alone."""
    if not result.splits:
        return []
    gpus, best, paid = result.setting.cost.cluster.gpus, result.best, result.best.row.dollars is not None
    head = ["generate", "train", "generation", "the rest", "one after\nthe other", "one step\nahead"]
    head += [*(["cost"] if paid else []), "times\nas\nfast", "memory"]
    ways = [(gpus, gpus, best, best.row.makespan_seconds, "")]
    for one in result.splits:
        ways.append((one.generators, gpus - one.generators, one.step, one.in_turn, _time(one.step.row)))
    cells = []
    for generators, trainers, step, in_turn, off in ways:
        spent = [] if step.row.dollars is None else [money(step.row.dollars)]
        times = f"{best.row.makespan_seconds / step.row.makespan_seconds:.2f}"
        parts = [_seconds(value) for value in (step.generation, step.trained, in_turn)]
        cells.append([str(generators), str(trainers), *parts, off, *spent, times, memory(step.row)])
    says = "One step ahead, answers are by weights of one step before; cost and speed are of that, for all GPUs."
    return [AnswerTable(head, cells, f"GPUs that generate alone, with {best.row.name}", names=2, says=says)]


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 1000 else f"{value:,.0f} s"


def _time(row: Row) -> str:
    return _seconds(row.makespan_seconds)


def table(steps: Sequence[RolloutStep]) -> AnswerTable:
    """Tight ones after those that fit, then those that do not; how many times as fast is over what needs no rule."""
    usual = _of(steps, REFERENCE).row.makespan_seconds
    paid = ["cost"] if any(step.row.dollars is not None for step in steps) else []
    cells = []
    for step in sorted(steps, key=lambda step: capacity.level(step.row)):
        row, parts = step.row, (step.generation, step.training, step.forward, step.row.makespan_seconds)
        spent = [] if row.dollars is None else [money(row.dollars)]
        seconds = [_seconds(value) for value in parts]
        cells.append([*row.pair, *seconds, *spent, f"{usual / row.makespan_seconds:.2f}", memory(row)])
    head = ["batching", "sync", "generation", "training", "forward", "step", *paid, "times\nas\nfast", "memory"]
    return AnswerTable(head, cells, names=2)


def _of(steps: Sequence[RolloutStep], pair: tuple[str, str]) -> RolloutStep:
    return next(step for step in steps if step.row.pair == pair)


def sentences(result: RolloutSteps) -> list[str]:
    """What a step takes, what batching and sync bring, and what would fit where nothing does, or where all is tight."""
    setting, own, rows = result.setting, result.own, _rows(result)
    first = " ".join([*takes([own] if own else rows), *run(result)])
    lines = [*([first] if first else []), *(beside(rows, own) if own else verdict(rows))]
    if own:
        lines.append(f"To start it: '--json | odcsim flags {setting.trainer} -'.")
    lines += [*generated(result), *split(result)]
    if setting.cost.cluster.gpus == 1:
        lines.insert(1, setting_words.ALONE)
    if all(capacity.level(step.row) > capacity.FITS for step in rows):
        ways_out = remedies(replace(setting, global_batch=setting.batch))
        lines += [f"Options that fit: {'; '.join(ways_out)}."] if ways_out else []
    lines += setting_words.doubts(result.fidelity, setting.cost.profile)
    return lines if result.grouped else [*lines, UNGROUPED]


def _rows(result: RolloutSteps) -> Sequence[RolloutStep]:
    """All, but of one GPU those without on-demand, which brings nothing where nobody waits."""
    alone = result.setting.cost.cluster.gpus == 1
    return [step for step in result.rows if not (alone and step.row.one_sided)]


def takes(steps: Sequence[RolloutStep]) -> list[str]:
    """What a step takes and costs by the fastest of those that fit."""
    if not (some := fitting(steps)):
        return []
    row = some[0].row
    low, high = row.model_low, row.model_high
    time, ends = duration(row.makespan_seconds, finer(low, high, duration)), from_to(low, high, duration)
    if row.dollars is not None and row.dollars_low is not None and row.dollars_high is not None:
        time += f" and {money(row.dollars, finer(row.dollars_low, row.dollars_high, money))}"
        ends += f", {from_to(row.dollars_low, row.dollars_high, money)}"
    return [f"A step takes {time} under {row.name}{'' if row.certain else f' (90 % interval {ends})'}."]


def run(result: RolloutSteps) -> Iterator[str]:
    """Hours and dollars of the whole run, by what a step takes."""
    if result.total_steps is None or result.best.row.memory_fits is False:
        return
    row = result.whole(result.best.row)
    low, high = row.model_low, row.model_high
    time, ends = duration(row.makespan_seconds, finer(low, high, duration)), from_to(low, high, duration)
    if row.dollars is not None and row.dollars_low is not None and row.dollars_high is not None:
        time += f" and {money(row.dollars, finer(row.dollars_low, row.dollars_high, money))}"
        ends += f", {from_to(row.dollars_low, row.dollars_high, money)}"
    wide = "" if row.certain else f" (90 % interval {ends})"
    yield f"{counted(result.total_steps, 'step')} take {time}{wide}."


def generated(result: RolloutSteps) -> Iterator[str]:
    """By what answers are written, and what the longest ones take of that."""
    one = result.generation
    if not one.estimated:
        if result.around.generation is None:
            yield "Generation is not in it: nobody knows this GPU's memory. --generation-seconds adds it."
        return
    each = f"{counted(one.engines, 'engine')} of {counted(one.engine_gpus, 'GPU')}{' each' if one.engines > 1 else ''}"
    waits = f": {one.tail:.0%} of it waits for the last tenth of the answers" if one.tail >= LONG else ""
    low, high = one.between
    yield f"Generation is estimated, by {each}{waits}. It may take {low:.2f} to {high:.2f} times as long (90 %)."
    if (steps := result.question.trace.size / result.batch.samples) < PILOT:
        size = f"{result.question.trace.size:,} rollouts, {steps:.1f} steps' worth"
        yield f"These are {size}, which hardly know how long the longest are: intervals may be too narrow."
    if result.setting.trace.loss is None:
        yield "The lengths do not say what is prompt: all of them is generated."


def split(result: RolloutSteps) -> Iterator[str]:
    """Whether some GPUs had better generate alone."""
    best = result.best.row
    fit = [one for one in result.splits if capacity.level(one.step.row) <= capacity.level(best)]
    if not fit:
        if result.splits:
            yield "Where some GPUs generate alone, the others have too little memory, or it is tight."
        return
    first = min(fit, key=lambda one: one.step.row.makespan_seconds)
    times, row = best.makespan_seconds / first.step.row.makespan_seconds, first.step.row
    others = result.setting.cost.cluster.gpus - first.generators
    who = f"{counted(first.generators, 'GPU')} that only {'generates' if first.generators == 1 else 'generate'}"
    if times < NOTABLE:
        yield f"To generate one step ahead on GPUs of their own does not pay here: {times:.2f} times as fast at most."
        return
    yield (
        f"With {who} beside {others} that {'trains' if others == 1 else 'train'}, one step ahead, a step takes "
        f"{duration(row.makespan_seconds)}, {times:.2f} times as fast: answers are then by weights of one step before."
    )


def fitting(steps: Sequence[RolloutStep]) -> list[RolloutStep]:
    """Those that fit; those that are tight, where none does. The fastest first."""
    level = min((capacity.level(step.row) for step in steps), default=capacity.OVER)
    some = [step for step in steps if capacity.level(step.row) == level < capacity.OVER]
    return sorted(some, key=lambda step: step.row.makespan_seconds)


def _first(steps: Sequence[RolloutStep], *, meets: bool) -> RolloutStep | None:
    return next((step for step in steps if step.row.one_sided is not meets), None)


def beside(steps: Sequence[RolloutStep], own: RolloutStep) -> list[str]:
    """What a trainer's own rule takes of the step, and what others would bring to it."""
    if own.row.memory_fits is False:
        return [f"{own.row.name} does not fit memory here: {capacity.size(own.row)}."]
    others = [step for step in fitting(steps) if step is not own]
    sides = [best for meets in (True, False) if (best := _first(others, meets=meets))]
    gains = [_gain(best, own) for best in sides if own.training / best.training >= NOTABLE]
    brought = f"With odc_engine: {' '.join(gains)}" if gains else "No rule of odc_engine is notably faster."
    tight = [f"Memory per device is {capacity.text(own.row)}, so it may not fit."] if capacity.tight(own.row) else []
    return [*tight, brought, _share(own)]


def verdict(steps: Sequence[RolloutStep]) -> list[str]:
    """What on-demand brings to the training pass, what that is of the whole step, and what dealing anew brings. Rows
    that do not fit memory take no part, nor do tight ones where any fits."""
    if not (some := fitting(steps)):
        return ["Out of memory: nothing here fits."]
    best, rival = (_first(some, meets=meets) for meets in (False, True))
    ahead = min((step for step in (rival, best) if step), key=lambda step: step.row.makespan_seconds)
    lead = _gain(best, rival) if best and rival else f"Of those that fit memory, {ahead.row.name} is the fastest."
    usual = _of(steps, VERL)
    if ahead is usual:
        anew = "No rule of assigning samples is faster here than verl's."
    elif capacity.level(usual.row) > capacity.level(ahead.row):
        anew = f"Verl's rule {'is tight in' if capacity.tight(usual.row) else 'does not fit'} memory here."
    else:
        anew = f"Compared with verl's rule: {_gain(ahead, usual)}"
    return [lead, _share(ahead), anew, *_memory(ahead, steps)]


def _memory(ahead: RolloutStep, steps: Sequence[RolloutStep]) -> Iterator[str]:
    """Where what is ahead is tight, and where it is ahead by memory alone."""
    row = ahead.row
    if capacity.tight(row):
        yield f"Memory per device of {row.name} is {capacity.text(row)}, so it may not fit."
    fuller = [step.row for step in steps if capacity.level(step.row) > capacity.level(row)]
    first = min(fuller, key=lambda other: other.makespan_seconds, default=row)
    if row.makespan_seconds / first.makespan_seconds >= NOTABLE:
        yield would_be(first, row)


def _gain(best: RolloutStep, rival: RolloutStep) -> str:
    training, step = rival.training / best.training, rival.row.makespan_seconds / best.row.makespan_seconds
    ours, theirs = best.row.name, rival.row.name
    if training < NOTABLE:
        return f"{ours} does not pay here: its training pass takes {1 / training:.2f} times as long as {theirs}."
    return f"{ours} makes the training pass {training:.2f} times as fast as {theirs}, the whole step {step:.2f} times."


def _share(step: RolloutStep) -> str:
    """Amdahl's: what is not training sets how much faster a step can become by training faster."""
    share = step.training / step.row.makespan_seconds
    if not step.generation:
        return f"Training is {share:.0%} of a step without generation."
    most = f"{1 / (1 - share):.2f}" if share < 1 else "any number of"
    return f"Training is {share:.0%} of the step: if it took no time, the step would be {most} times as fast."
