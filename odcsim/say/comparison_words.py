"""What a comparison comes to, in sentences for somebody who will decide by them."""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import numpy as np

from odcsim.answer import Answer, AnswerTable
from odcsim.catalog.estimates import memory
from odcsim.decide import room, stock
from odcsim.decide.comparison import Comparison
from odcsim.decide.decision import NOTABLE, Decision, decide, rows_to_show
from odcsim.decide.levers import Levers
from odcsim.decide.limit import limits
from odcsim.decide.remedies import remedies
from odcsim.decide.setting import Setting
from odcsim.decide.whole_run import epochs
from odcsim.neighbours.neighbour import Neighbour
from odcsim.program import WHOLE
from odcsim.recipe import CHOICES, Recipe
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.results.intervals import Draws
from odcsim.results.summary import Made, Row, best_first
from odcsim.say import lever_words, row_words, setting_words
from odcsim.say.row_words import COLUMNS
from odcsim.say.spending_words import (
    dollars_between,
    hours_between,
    interval_of,
    spent_by,
    spent_dollars,
    spent_hours,
)
from odcsim.support.numbers import counted, duration, finer, from_to, hours, money, ratio
from odcsim.trace import Trace

GROUPS = "groups of {} alike: the interval counts whole groups"
RUNS = "runs of about {} alike, found in the order of the file: the interval counts whole runs"
BAR = 40  # characters
SLIGHT = 0.1  # of a sample more that one stands for with those that are like it


def answer(comparison: Comparison, *, wide: bool = False, levers: Levers | None = None) -> Answer:
    """`wide`: all rows and columns. Rows without on-demand are a table alone."""
    setting, about = comparison.setting, setting_words.named(comparison.setting)
    question = setting_words.question(setting, limited=not comparison.stock)
    if not any(row.one_sided for row in comparison.rows):
        return Answer("Comparison", about, "", question, [table(comparison, comparison.rows)])
    decision = decide(comparison)
    rows = comparison.rows if wide else rows_to_show(comparison, decision)
    every = [
        *whole_run(comparison, decision),
        *misfit(comparison, decision),
        *sentences(comparison, decision),
        f"Cost: {setting.cost.profile.origin}.",
    ]
    tables = [table(comparison, rows, wide=wide, decision=decision)]
    numbers = figures(comparison, decision)
    because = lever_words.why(decision.chosen, setting.cost.workers)
    first = f"{headline(decision)}{because and f' {because}'}"
    return lever_words.beside(Answer("Comparison", about, first, question, tables, every, numbers), levers)


def table(
    comparison: Comparison, rows: Sequence[Row], *, wide: bool = False, decision: Decision | None = None
) -> AnswerTable:
    """The columns by which somebody decides, in 80 characters; `wide`: all of them. Of a whole run where epochs were
    asked for."""
    ordered = best_first(rows)
    priced = any(row.dollars is not None for row in rows)
    names = row_words.WIDE if wide else row_words.PRICED if priced else row_words.FEW
    marks = [mark(row, decision) for row in ordered] if decision else []
    head, cells = row_words.table([comparison.spent(row) for row in ordered], names)
    spent = "Seconds, GPU-hours and dollars" if wide else "Dollars" if priced else "GPU-hours"
    short = [name.replace(" best ", " best\n") for name in head]
    return AnswerTable(short, cells, names=2, marks=marks, says=f"{spent} are of {comparison.basis}.")


def mark(row: Row, decision: Decision) -> str:
    return "best" if row is decision.chosen else "reference" if row is decision.reference else ""


def memory_table(decision: Decision) -> AnswerTable:
    """What the memory of the rows that the decision rests on is for."""
    sides = (decision.reference, decision.rival, *(() if decision.alone else (decision.best,)))
    rows = {r.name: r.memory_terms for r in sides if r.memory_terms}
    every = {words: [terms[name] for terms in rows.values()] for name, words in memory.IN_WORDS.items()} if rows else {}
    every = {words: sizes for words, sizes in every.items() if any(sizes)}
    every["together"] = [sum(terms.values()) for terms in rows.values()]
    cells = [[words, *(f"{size / 1e9:.1f}" for size in sizes)] for words, sizes in every.items()]
    head = ["memory per device, GB", *(row.replace(" + ", "\n+ ") for row in rows)]
    return AnswerTable(head, cells, "Peak memory by use")


def limits_table(swept: Sequence[tuple[int, Comparison]]) -> AnswerTable:
    """A row per limit, with the speedup of on-demand + lb-mini as a bar."""
    best, rows = max(c.row("lb-mini", "on-demand").speedup or 0 for _, c in swept), []
    for limit, comparison in swept:
        micro, mini = (comparison.row(name, "on-demand") for name in ("lb-micro", "lb-mini"))
        bar = "█" * round(BAR * max(0.0, (mini.speedup or 0) - 1) / max(best - 1, 1e-9))
        speedups = (f"{row.speedup or 0:.2f}" for row in (micro, mini))
        rows.append([f"{limit:,}", *speedups, COLUMNS["memory"].text(mini), bar.ljust(BAR)])
    head = ["max tokens", "lb-micro", "lb-mini", "memory", "(both on-demand)".ljust(BAR)]
    name = "Speedup over collective + lb-micro at the same limit of a microbatch"
    return AnswerTable(head, rows, name)


def advice(comparison: Comparison, decision: Decision) -> list[str]:
    """What to run, how long, how much; how sure, by the interval of its seconds and that of its minibatches; and
    whether it fits."""
    chosen, setting, run = decision.chosen, comparison.setting, comparison.whole_run
    unfit = misfit(comparison, decision)
    if decision.nothing_fits:
        return [headline(decision), *unfit]
    size = f"{counted(setting.minibatch, setting.trace.unit)} {setting_words.per_step(setting)}, "
    size += f"at most {setting.limit:,} tokens in a microbatch"
    size = settings(chosen.made, setting.trace.unit) if chosen.made else size
    if run is None:
        paid = f", {spent_dollars(chosen)}" if chosen.dollars is not None else ""
        takes = f"{chosen.minibatches} optimizer steps take {duration(chosen.makespan_seconds)}, "
        takes += f"{spent_hours(chosen)}{paid}."
    else:
        takes = " ".join(whole_run(comparison, decision))
    off, spent = from_to(chosen.speedup_low or 0.0, chosen.speedup_high or 0.0, ratio), comparison.spent(chosen)
    if spent.certain:
        seconds = "the seconds come without an interval"
    else:
        ends = spent.model_low / spent.makespan_seconds, spent.model_high / spent.makespan_seconds
        seconds = f"the 90 % interval is {from_to(*ends, ratio)} times these seconds"
    sure = f"Uncertainty: {seconds}; the speedup over collective + lb-micro is {off}."
    return [f"Run {chosen.name}: {size}. {takes}", *unfit, sure]


def figures(comparison: Comparison, decision: Decision) -> list[tuple[str, str]]:
    """A few numbers to remember, each with what it is."""
    chosen, before = (comparison.spent(row) for row in (decision.chosen, decision.reference))
    for_steps = f"for {chosen.minibatches:,} optimizer steps"
    instead = "before" if decision.balanced is None else f"under {decision.reference.name}"
    spent = f"GPU-hours {for_steps}{hours_between(chosen)}, {hours(before.gpu_hours)} {instead}"
    more = finer(chosen.gpu_hours_low, chosen.gpu_hours_high, hours)
    figures = [(duration(chosen.makespan_seconds), for_steps), (hours(chosen.gpu_hours, more), spent)]
    if chosen.dollars is not None and before.dollars is not None:
        more = finer(chosen.dollars_low or 0.0, chosen.dollars_high or 0.0, money)
        dollars = f"{for_steps}{dollars_between(chosen)}, {money(before.dollars)} {instead}"
        figures.append((money(chosen.dollars, more), dollars))
    if decision.balanced is None:
        idle = f"idle, from collective + lb-micro to {chosen.name}"
        figures.append((f"{before.idle:.0%} → {chosen.idle:.0%}", idle))
    else:
        figures.append((f"{chosen.idle:.0%}", f"idle under {chosen.name}"))
    gain = f"as fast as collective + lb-micro, {interval(decision.chosen)}"
    figures.append((f"{chosen.speedup:.2f} x", gain))
    if chosen.memory_bytes is not None:
        room = f" of {comparison.memory_limit / 1e9:.0f} GB that a GPU has" if comparison.memory_limit else ""
        figures.append((f"{chosen.memory_bytes / 1e9:.0f} GB", f"of memory per device{room}"))
    return figures


def parted(comparison: Comparison, decision: Decision) -> tuple[list[Row], list[Row]]:
    """Those to choose from, and those that nobody would choose: both in order of speed, those that do not fit last."""
    ordered = best_first(rows_to_show(comparison, decision) if decision.alone else comparison.rows)
    best = {row.sync: row.pair for row in reversed(ordered)}
    few = {*best.values(), *(row.pair for row in (decision.reference, decision.rival, decision.best))}
    return [r for r in ordered if r.pair in few], [r for r in ordered if r.pair not in few]


def headline(decision: Decision) -> str:
    """Yes or no, in a few sentences; and what memory has to do with it."""
    if decision.nothing_fits:
        return _nothing_fits(decision)
    if decision.balanced or decision.alone:
        words = _own(decision) if decision.balanced else _alone(decision)
    else:
        words = _by_memory(decision) if decision.by_memory else _by_speed(decision)
    if capacity.tight(decision.chosen):  # more of a GPU than estimates can be trusted for
        words += f" Memory per device is {capacity.text(decision.chosen)}, so it may not fit."
    for kept, row in decision.kept_out:
        words += f" {would_be(row, kept)}"
    return words


def would_be(row: Row, kept: Row) -> str:
    """How much faster a row would be than one that is chosen before it by memory alone."""
    times = kept.makespan_seconds / row.makespan_seconds
    why = "is tight in memory" if capacity.tight(row) else "does not fit memory"
    return f"{row.name} would be {times:.2f} times as fast as {kept.name}, but {why} ({capacity.size(row)})."


def _nothing_fits(decision: Decision) -> str:
    """What does by the engine's plans, where only the trainer's own ways do not fit."""
    fitting = [row for row in _engine(decision) if row.memory_fits is not False]
    if decision.balanced is None or not fitting:
        return "Out of memory: nothing here fits."
    every = " and ".join(f"{row.name} ({capacity.text(row)})" for row in fitting)
    verb = "fits" if len(fitting) == 1 else "fit"
    return f"Out of memory: nothing that the trainer runs by itself fits. With odc_engine, {every} {verb}."


def _own(decision: Decision) -> str:
    """The best that the trainer runs, and what it would gain from plans and from on-demand, which the engine brings."""
    chosen = decision.chosen
    made = f", {settings(chosen.made, decision.unit)}" if chosen.made else ""
    words = f"The trainer's own fastest way is {chosen.name}{made}."
    others = [row for row in _engine(decision) if row.memory_fits is not False]
    gains = [(row, chosen.makespan_seconds / row.makespan_seconds) for row in others]
    if not any(gain >= NOTABLE for _, gain in gains):
        sync = "" if decision.alone else " and no sync"
        return f"{words} No balancer{sync} of odc_engine is notably faster."
    every = " and ".join(f"{row.name} {gain:.2f} times" for row, gain in gains)
    return f"{words} With odc_engine, {every} as fast."


def _engine(decision: Decision) -> list[Row]:
    """What a trainer does not run by itself: the best balanced, and, where somebody waits, the best on demand."""
    return [row for row in (decision.balanced, None if decision.alone else decision.best) if row]


def _alone(decision: Decision) -> str:
    chosen, gain = decision.chosen, decision.chosen.speedup or 1.0
    faster = f", {gain:.2f} times as fast as by lb-micro" if gain >= NOTABLE else ""
    return f"{setting_words.ALONE} Cut minibatches into microbatches by {chosen.balancer}{faster}."


def _by_memory(decision: Decision) -> str:
    """Where memory alone decides between the two sides."""
    (fit, other) = (decision.best, decision.rival) if decision.pays else (decision.rival, decision.best)
    times = fit.makespan_seconds / other.makespan_seconds
    faster = f" and be {times:.2f} times as fast" if times >= NOTABLE else ""
    sizes = f"{other.name} would need {(other.memory_bytes or 0) / 1e9:.0f} GB{faster},"
    sizes += f" {fit.name} needs {capacity.size(fit)}."
    if capacity.tight(other):
        why = f"{'without' if decision.pays else 'with'} on-demand, every row is tight in memory here"
    else:
        why = "only on-demand fits memory here" if decision.pays else "on-demand does not fit memory here"
    return f"{'Yes' if decision.pays else 'No'}: {_do(decision)}; {why}. {sizes}"


def _do(decision: Decision) -> str:
    """What to run, and what that brings."""
    chosen, reference = decision.chosen, decision.reference
    alike = round(chosen.speedup or 0.0, 2) == 1 and capacity.level(chosen) == capacity.level(reference)
    if chosen is reference or alike:
        return f"keep {reference.name}"
    return f"run {chosen.name}, {chosen.speedup:.2f} times as fast as {reference.name}"


def _by_speed(decision: Decision) -> str:
    best, flip = decision.best, decision.flips
    gain = f"{best.speedup:.2f} times as fast as collective + lb-micro ({interval(best)})"
    if decision.pays:
        words = f"Yes: {_do(decision)} ({interval(best)}) and {decision.over_rival:.2f} times as fast as the best row"
        words += f" without on-demand, {decision.rival.name}."
    else:
        certain, beside = (best.speedup_low or 0) > 1, ""
        what = "on-demand adds next to nothing" if certain else "on-demand adds nothing"
        if not certain and min(best.speedup or 0, decision.over_rival) >= NOTABLE:
            what = "on-demand may add nothing"
        if (best.speedup_high or 0) < 1 and round(best.speedup or 0, 2) < 1:
            what = "on-demand is slower"
        if certain and decision.chosen is not decision.reference:
            beside = f", and {decision.over_rival:.2f} times as fast as {decision.rival.name}"
        words = f"No: {_do(decision)}; {what}. Its best row, {best.name}, is {gain}{beside}."
    if flip is None:
        return words
    lead = f"on-demand is then {flip.lead:.2f} times as fast as the best row without it"
    other = "No" if decision.pays else "Yes"
    return f"{words} The answer is {other} if compute takes {flip.factor:.2f} times these seconds: {lead}."


def interval(row: Row) -> str:
    if row.minibatches == 1:
        return "no interval from one minibatch"
    return f"95 % interval {from_to(row.speedup_low or 0.0, row.speedup_high or 0.0, ratio)}"


def misfit(comparison: Comparison, decision: Decision) -> list[str]:
    """Where nothing fits: what the row that needs least would need."""
    chosen, limit = decision.chosen, comparison.memory_limit
    if chosen.memory_fits is not False or chosen.memory_bytes is None or limit is None:
        return []
    extra = _over_full(comparison, chosen)
    size = f"{chosen.memory_bytes / 1e9:.0f} GB of memory per device, and one has {limit / 1e9:.0f} GB"
    full = f" Full sharding would need {(chosen.memory_bytes - extra) / 1e9:.0f} GB." if extra else ""
    most = f" Most of it is {most}." if (most := row_words.most(chosen)) else ""
    return [f"Even {chosen.name} does not fit: it is estimated to need {size}.{full}{most}"]


def sentences(comparison: Comparison, decision: Decision) -> list[str]:
    """Where the difference comes from, what it saves, and how far to trust it."""
    setting, run = comparison.setting, comparison.whole_run
    lengths = [setting_words.lengths(setting.trace.origin)] if setting.trace.origin else []
    if decision.nothing_fits:
        return [*_ways_out(comparison), *lengths]
    return [
        f"{_idle(decision)} {_savings(comparison, decision)}",
        _trust(comparison, decision),
        *([setting_words.UNRUN] if setting.cost.recipe.quantized and not decision.alone else []),
        *_rules(comparison),
        *setting_words.reference(setting.trace, None if run is None else run.over(decision.chosen).reference_seconds),
        *_tightness(comparison, decision.chosen),
        *_sharding(comparison, decision),
        setting_words.fixed(setting, limited=decision.balanced is None),
        *alike(setting.trace, comparison.draws),
        *lengths,
    ]


def basis(comparison: Comparison) -> str:
    """What the figures of a table are of."""
    return f"Seconds, GPU-hours and dollars are of {comparison.basis}."


def _idle(decision: Decision) -> str:
    before, after = decision.reference, decision.chosen
    if decision.balanced is not None:
        best = min(_engine(decision), key=lambda row: row.makespan_seconds)
        return f"Devices idle {after.idle:.0%} of the time under {after.name}, {best.idle:.0%} under {best.name}."
    words = f"Devices idle {before.idle:.0%} of the time under {before.name}"
    words += f" and {after.idle:.0%} under {after.name}." if after is not before else ", and no row is faster."
    if decision.pays:
        gains = f"{after.sync_gain:.2f} comes from the sync and one of {after.balancer_gain:.2f} from the balancer"
        words += f" Of the speedup, a factor of {gains}."
    return words


def _savings(comparison: Comparison, decision: Decision) -> str:
    """Dollars of a whole run stand beside its hours, in a sentence of its own."""
    before, after = (comparison.spent(row) for row in (decision.reference, decision.chosen))
    run = comparison.whole_run is not None
    takes = "takes" if comparison.setting.minibatches == 1 else "take"
    words = f"The whole run takes {spent_hours(after)}" if run else f"{comparison.basis} {takes} {spent_hours(after)}"
    if decision.chosen is decision.reference or decision.balanced is not None:
        return f"{words}."
    words += f" instead of {hours(before.gpu_hours)}"
    if not run and after.dollars is not None and before.dollars is not None:
        words += f", {spent_dollars(after)} instead of {money(before.dollars)}"
    return f"{words}."


def _trust(comparison: Comparison, decision: Decision) -> str:
    """What the minibatches take, of which a whole run has a sentence of its own; and what engineers see at once whether
    it is plausible."""
    chosen = decision.chosen
    words = setting_words.trust(comparison.fidelity, comparison.setting.cost.profile)
    if comparison.whole_run is None:
        interval = "" if chosen.certain else f", 90 % interval {from_to(chosen.model_low, chosen.model_high, _long)}"
        words += f" Under {chosen.name} all minibatches take {_long(chosen.makespan_seconds)}{interval}."
    if chosen.tflops_per_device is not None:
        shares = "" if chosen.mfu is None or chosen.hfu is None else f", {chosen.mfu:.0%} MFU, {chosen.hfu:.0%} HFU"
        words += f" Each device reaches {chosen.tflops_per_device:.0f} TFLOP/s{shares}."
    return f"{words} If all times are off by one factor, speedups still hold."


def _long(seconds: float, more: int = 0) -> str:
    return f"{hours(seconds, more)} s"


def _rules(comparison: Comparison) -> Iterator[str]:
    """By which rules the trainer deals, and which of them would train on another batch."""
    setting = comparison.setting
    if (trainer := stock.find(setting.trainer)) is None:
        return
    yield rules(trainer, setting.trace, setting.cost.recipe)
    yield from left_out(setting, trainer, {balancer for balancer, _ in comparison.stock})


def left_out(setting: Setting, trainer: Neighbour, there: Container[str]) -> Iterator[str]:
    """Rules of the trainer that would train on another batch."""
    for rule in trainer.own(setting.trace):
        if rule.rows is None or rule.balancer in there:
            continue
        why = "rows would span steps that are kept in order"
        if setting.trace.bundle is not None:
            why = "what stays together is not packed into rows"
        elif stock.packs(setting):
            why = f"{stock.nearest_steps(setting, rule)} samples"
        yield f"{rule.balancer} is left out: {why}."


def rules(trainer: Neighbour, trace: Trace, recipe: Recipe) -> str:
    every = "; ".join(f"{rule.balancer}: {rule.says}" for rule in trainer.own(trace))
    own = [CHOICES[name].phrase(of) for name, of in trainer.assumes.items() if recipe.value(name) == of]
    assumed = f" Assumed for it, unless you ask for others: {', '.join(own)}." if own else ""
    syncs = " or ".join(trainer.syncs)
    start = f" To start a row: '--json | odcsim flags {trainer.name} -'."
    return f"{trainer.name} assigns samples by its own rules ({every}) under {syncs} sync.{assumed}{start}"


def settings(made: Made, unit: str = "sample") -> str:
    """What the trainer is told, and what a step is then."""
    step = f"{made.samples:,.0f} {unit}s a step"
    if made.each:
        return f"{counted(made.each, unit)} in a microbatch, {step}"
    return f"at most {made.max_tokens:,} tokens in a microbatch, {step}"


def _tightness(comparison: Comparison, chosen: Row) -> list[str]:
    """What would fit where the row to choose is tight, or would not hold the longest sample, which was not drawn."""
    trace, cost = comparison.setting.trace, room.under(comparison.setting.cost, chosen.sync)
    alone = Need(room.least(cost, trace).total, comparison.memory_limit)
    if capacity.level(alone) <= capacity.level(chosen):
        return _ways_out(comparison) if capacity.tight(chosen) else []
    words = f"The longest sample, {trace.longest:,} tokens, is not in these minibatches: with it, memory per device is"
    return [f"{words} {capacity.text(alone)}.", *_ways_out(comparison)]


def _ways_out(comparison: Comparison) -> list[str]:
    """What would fit the memory that the comparison was made for, each by itself."""
    cost, limit = comparison.setting.cost, comparison.memory_limit or 0.0
    limited = replace(cost, cluster=replace(cost.cluster, memory_bytes=limit))
    every = remedies(replace(comparison.setting, cost=limited))
    return [f"Options that fit: {'; '.join(every)}."] if every else []


def _sharding(comparison: Comparison, decision: Decision) -> list[str]:
    """What another sharding, or all that a node keeps, brings the chosen row and costs, where somebody asked for it."""
    setting, chosen = comparison.setting, decision.chosen
    recipe, gain = setting.cost.recipe, chosen.over_full
    if recipe.on(2).hierarchical:  # asked for, whether or not there are nodes
        return [_gained("Hierarchical transfers", ("run", "make"), comparison, chosen)]
    if recipe.sharding == "full":
        return []
    if recipe.sharding == WHOLE and chosen.one_sided:
        return [
            "On-demand is priced with full sharding: it gathers from shards. All else is not sharded, as under DDP."
        ]
    name = "Hybrid sharding" if recipe.sharding == "hybrid" else "Training without sharding (DDP)"
    words = _gained(name, ("runs", "makes"), comparison, chosen)
    if gain is None:
        return [words]
    rivals, limit = [row for row in comparison.rows if not row.one_sided], comparison.memory_limit or math.inf
    fitting = [row for row in rivals if (row.memory_bytes or 0.0) - _over_full(comparison, row) <= limit]
    full = {row.name: row.makespan_seconds * (row.over_full or 1) for row in fitting or rivals}
    rival = min(full, key=lambda name: full[name])
    longer = f"{full[rival] / chosen.makespan_seconds:.2f} times as long"
    if not stock.given_limit(setting):  # full sharding may have room for more, and would not run at this limit
        other = replace(setting, cost=setting.cost.by(sharding="full"))
        held, most = (max(limits(one), default=0) for one in (setting, other))
        longer += f" at this limit, and has room for {most:,} tokens in a microbatch" if most > held else ""
    return [f"{words} Full sharding's best row without on-demand, {rival}, takes {longer}."]


def _gained(name: str, verbs: tuple[str, str], comparison: Comparison, chosen: Row) -> str:
    (run, make), times = verbs, chosen.over_full
    if comparison.setting.cost.cluster.nodes == 1 and chosen.recipe.sharding != WHOLE:
        return f"{name} {make} no difference here: there is one node, so it is full sharding."
    price = f"{_over_full(comparison, chosen) / 1e9:.1f} GB more memory per device"
    if times is None:
        return f"{name} {make} no difference to {chosen.name}: it has none."
    if round(times, 2) <= 1:
        return f"{name} {make} {chosen.name} no faster here ({times:.2f} times full sharding), for {price}."
    return f"{name} {run} {chosen.name} {times:.2f} times as fast as full sharding would, for {price}."


def _over_full(comparison: Comparison, row: Row) -> float:
    """Bytes of a row's memory that full sharding would not need."""
    cost = room.under(comparison.setting.cost, row.sync)
    return memory.over_full(cost.model, cost.cluster.gpus, row.recipe, cost.holders)


def alike(trace: Trace, draws: Draws) -> list[str]:
    """What intervals take for one: samples of a prompt, or of a run in the file as long as its neighbours' likeness
    says; nothing where they hardly are alike."""
    like = draws.like[1:] if draws.of > trace.size else np.zeros(0)
    if trace.prompts is not None:
        size, groups = trace.size / len(np.unique(trace.prompts)), GROUPS
    elif trace.siblings[0] > 1:
        size, groups = trace.siblings[0], GROUPS
    else:
        size, groups = 2 * like.sum() / like[:1].sum() if like.any() else 1.0, RUNS
    return [f"Lengths come in {groups.format(round(size))}."] if (size - 1) * like[:1].sum() > SLIGHT else []


def whole_run(comparison: Comparison, decision: Decision) -> list[str]:
    """Time and dollars of the row to choose over the epochs that were asked for, where they were and one fits."""
    if (run := comparison.whole_run) is None or decision.nothing_fits:
        return []
    chosen, before = (run.shown(row) for row in (decision.chosen, decision.reference))
    own, verb = run.of(decision.chosen), "is" if run.epochs == 1 else "are"
    batch = f"{own.samples:,.0f} {comparison.setting.trace.unit}s"
    interval = "" if chosen.certain else f" ({interval_of(chosen)})"
    takes = f"{spent_by(chosen)} under {decision.chosen.name}{interval}"
    words = f"{epochs(run.epochs)} {verb} {own.steps:,} steps of {batch}: {takes}"
    if decision.reference is decision.chosen or decision.balanced is not None:
        return [f"{words}."]
    return [f"{words}, instead of {spent_by(before)} under {decision.reference.name}."]
