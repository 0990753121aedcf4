"""The report: one HTML file that opens without network and says what was asked, what came out and what it rests on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from odcsim import plots
from odcsim.decide import answer, answer_words, setting_words
from odcsim.decide.answer import Answer
from odcsim.decide.answer_words import dollars_between, hours_between, spent_dollars, spent_hours
from odcsim.decide.comparison import Comparison, inputs
from odcsim.plots.gantt import idle
from odcsim.plots.rows import ceiling
from odcsim.recipe import ASKED, CHOICES, PART
from odcsim.results import summary
from odcsim.results.summary import Row
from odcsim.show.pages import page
from odcsim.support.checked import expect
from odcsim.support.files import write_text
from odcsim.support.numbers import counted, duration, finer, from_to, hours, money, ratio

RESTS = ". What the model assumes, and what it leaves out: <code>docs/model</code> of odcsim's repository"
RESTS += " beside its source."


def write_report(
    comparison: Comparison,
    path: Path | str,
    sweep: Sequence[tuple[int, Comparison]] = (),
    *,
    epochs: float | None = None,
) -> None:
    """`sweep` is what `sweep_max_tokens` returned, and `epochs` a whole training run, where somebody asked for them."""
    expect(comparison, Comparison, "comparison", "odcsim.compare")
    write_text(Path(path), report(comparison, sweep, epochs))


def report(comparison: Comparison, sweep: Sequence[tuple[int, Comparison]] = (), epochs: float | None = None) -> str:
    if epochs is not None:
        sweep = [(limit, _over(other, epochs)) for limit, other in sweep]
        comparison = _over(comparison, epochs)
    reply = answer.answer(comparison)
    cost, trace = comparison.setting.cost, comparison.setting.trace
    where = f"{cost.cluster.gpus} x {cost.profile.gpu}"
    title = f"How to train {cost.model.name} on {where}, with lengths like those of {trace.name}?"
    order = "In order of speed. Marked: the row to choose, and collective + lb-micro."
    body = [
        page.heading(title, 1),
        *_opening(comparison, reply),
        page.heading("Every balancer under every sync"),
        page.paragraph(f"{answer_words.basis(comparison)} {order}", "note"),
        *_rows(comparison, reply),
        plots.embed(plots.speedups(comparison.rows), "speedups"),
        plots.embed(plots.idle(comparison.rows), "idle"),
        *_pair(comparison, reply),
        *(_sweep(sweep) if sweep else []),
        *_memory(reply),
        page.heading("Your lengths"),
        plots.embed(plots.lengths(trace), "lengths"),
        *_origins(comparison),
    ]
    return page.with_figures(title, body, RESTS)


def _over(comparison: Comparison, epochs: float) -> Comparison:
    """The same, asked for so many epochs."""
    return replace(comparison, setting=replace(comparison.setting, epochs=epochs))


def _opening(comparison: Comparison, reply: Answer) -> list[str]:
    """What to run, what it takes, how sure that is; then what on-demand gives. Figures are of the whole training run,
    where somebody asked for one."""
    badges = [f"seconds: {comparison.fidelity}"]
    badges += [f"lengths: {setting_words.SHAPE}"] if setting_words.SHAPE in comparison.setting.trace.origin else []
    gain = "Would on-demand communication pay?" if reply.balanced is None else "What would you gain with odc_engine?"
    return [
        page.answer(advice(comparison, reply)),
        page.key_figures(_figures(comparison, reply)),
        f"<p>{' '.join(map(page.badge, badges))}</p>",
        page.heading(gain),
        page.answer([answer_words.verdict(reply)], yes=reply.pays),
        *(page.paragraph(sentence) for sentence in answer_words.sentences(comparison, reply)),
    ]


def advice(comparison: Comparison, reply: Answer) -> list[str]:
    """What to run, how long, how much; how sure, by the interval of its seconds and that of its minibatches; and
    whether it fits."""
    chosen, setting, run = reply.chosen, comparison.setting, comparison.whole_run
    misfit = answer_words.misfit(comparison, reply)
    if reply.nothing_fits:
        return [answer_words.verdict(reply), *misfit]
    size = f"{setting.minibatch} {setting.trace.unit}{'s' if setting.minibatch > 1 else ''} per device and step, "
    size += f"at most {setting.limit:,} tokens in a microbatch"
    size = answer_words.settings(chosen.made, setting.trace.unit) if chosen.made else size
    if run is None:
        paid = f", {spent_dollars(chosen)}" if chosen.dollars is not None else ""
        takes = f"{chosen.minibatches} optimizer steps take {duration(chosen.makespan_seconds)}, "
        takes += f"{spent_hours(chosen)}{paid}."
    else:
        takes = " ".join(answer_words.whole_run(comparison, reply))
    off, spent = from_to(chosen.speedup_low or 0.0, chosen.speedup_high or 0.0, ratio), comparison.spent(chosen)
    if spent.certain:
        seconds = "the seconds come without an interval"
    else:
        ends = spent.model_low / spent.makespan_seconds, spent.model_high / spent.makespan_seconds
        seconds = f"the 90 % interval is {from_to(*ends, ratio)} times these seconds"
    sure = f"Uncertainty: {seconds}; the speedup over collective + lb-micro is {off}."
    return [f"Run {chosen.name}: {size}. {takes}", *misfit, sure]


def _figures(comparison: Comparison, reply: Answer) -> list[tuple[str, str]]:
    """A few numbers to remember, each with what it is."""
    chosen, before = (comparison.spent(row) for row in (reply.chosen, reply.reference))
    for_steps = f"for {chosen.minibatches:,} optimizer steps"
    instead = "before" if reply.balanced is None else f"under {reply.reference.name}"
    spent = f"GPU-hours {for_steps}{hours_between(chosen)}, {hours(before.gpu_hours)} {instead}"
    more = finer(chosen.gpu_hours_low, chosen.gpu_hours_high, hours)
    figures = [(duration(chosen.makespan_seconds), for_steps), (hours(chosen.gpu_hours, more), spent)]
    if chosen.dollars is not None and before.dollars is not None:
        more = finer(chosen.dollars_low or 0.0, chosen.dollars_high or 0.0, money)
        dollars = f"{for_steps}{dollars_between(chosen)}, {money(before.dollars)} {instead}"
        figures.append((money(chosen.dollars, more), dollars))
    if reply.balanced is None:
        idle = f"idle, from collective + lb-micro to {chosen.name}"
        figures.append((f"{before.idle:.0%} → {chosen.idle:.0%}", idle))
    else:
        figures.append((f"{chosen.idle:.0%}", f"idle under {chosen.name}"))
    gain = f"as fast as collective + lb-micro, {answer_words.interval(reply.chosen)}"
    figures.append((f"{chosen.speedup:.2f} x", gain))
    if chosen.memory_bytes is not None:
        room = f" of {comparison.memory_limit / 1e9:.0f} GB that a GPU has" if comparison.memory_limit else ""
        figures.append((f"{chosen.memory_bytes / 1e9:.0f} GB", f"of memory per device{room}"))
    return figures


def _rows(comparison: Comparison, reply: Answer) -> list[str]:
    """The rows that the answer names and the best of each sync, and behind a line to open all others."""

    def table(ordered: Sequence[Row], name: str) -> str:
        kinds = ["best" if r is reply.chosen else "reference" if r is reply.reference else "" for r in ordered]
        spent = [comparison.spent(row) for row in ordered]
        return page.table(*summary.table(spent, summary.PAGE), kinds, name=f"{name}: of {comparison.basis}")

    few, others = parted(comparison, reply)
    first = table(few, "The rows to choose from")
    words = f"{counted(len(others), 'more row')}: slower than the best of their sync, or over memory"
    return [first, page.folded(words, [table(others, "Every other row")])] if others else [first]


def parted(comparison: Comparison, reply: Answer) -> tuple[list[Row], list[Row]]:
    """Those to choose from, and those that nobody would choose: both in order of speed, those that do not fit last."""
    ordered = summary.best_first(comparison.rows)
    best = {row.sync: row.pair for row in reversed(ordered)}
    few = {*best.values(), *(row.pair for row in (reply.reference, reply.rival, reply.best))}
    return [r for r in ordered if r.pair in few], [r for r in ordered if r.pair not in few]


def _pair(comparison: Comparison, reply: Answer) -> list[str]:
    """What to run against what is run today, in the minibatch that idles as the table says; drawn to one scale."""
    chosen = reply.best if reply.chosen is reply.reference else reply.chosen
    pair = [row.pair for row in (reply.reference, chosen)]
    number = comparison.typical(*pair)
    timelines = [comparison.timeline(*row, number) for row in pair]
    spans = [float(t.blocks[0].had.max()) for t in timelines]
    lost = [idle(*t.block_of(0)) for t in timelines]
    words = f"Both charts run the same {timelines[0].samples[0]} samples, on one time scale: "
    words += f"minibatch {number}. Its idle time "
    words += f"({lost[0]:.0%} and {lost[1]:.0%}) is closest to that of all {comparison.setting.minibatches} "
    words += f"({reply.reference.idle:.0%} and {chosen.idle:.0%}). "
    words += f"The upper chart takes {spans[0] / spans[1]:.2f} times as long."
    drawn = [plots.gantt(t, 0, until=max(spans), number=number) for t in timelines]
    charts = [plots.embed(chart, name) for chart, name in zip(drawn, ("gantt-before", "gantt-after"), strict=True)]
    return [page.heading("One minibatch, device by device"), page.paragraph(words), *charts]


def _sweep(sweep: Sequence[tuple[int, Comparison]]) -> list[str]:
    """The speedups, and the fastest row at each limit with what it costs; what does not fit is said so."""
    best = [comparison.spent(answer.answer(comparison).chosen) for _, comparison in sweep]
    names, texts = summary.table(best, summary.LIMITS)
    cells = [[f"{limit:,}", *row] for (limit, _), row in zip(sweep, texts, strict=True)]
    kinds = ["reference" if row.memory_fits is False else "" for row in best]
    room, points = sweep[0][1].memory_limit, [(limit, comparison.rows) for limit, comparison in sweep]
    words = f"{answer_words.basis(sweep[0][1])} The speedup is over collective + lb-micro at the same limit."
    words += f" A GPU has {room / 1e9:.0f} GB." if room else ""
    head, name = ["tokens of a microbatch", "fastest row", *names[1:]], "The fastest row at each token limit"
    return [
        page.heading("How many tokens should a microbatch hold?"),
        plots.embed(plots.sweep(points), "sweep"),
        plots.embed(ceiling(points, room), "ceiling"),
        page.table(head, cells, kinds, name=name),
        page.paragraph(words, "note"),
    ]


def _memory(reply: Answer) -> list[str]:
    """What the memory of the rows that count is for."""
    rows = {r.name: r.memory_terms for r in (reply.reference, reply.rival, reply.best) if r.memory_terms}
    if not rows:
        return []
    names = [name for name in next(iter(rows.values())) if any(terms[name] for terms in rows.values())]
    cells = [[row, *(f"{terms[name] / 1e9:.1f}" for name in names)] for row, terms in rows.items()]
    table = page.table(["GB", *names], cells, name="Peak memory by use")
    words = "Peak memory of one device in a minibatch (GB), by use."
    return [page.heading("Memory"), table, page.paragraph(words, "note")]


def _origins(comparison: Comparison) -> list[str]:
    setting, profile = comparison.setting, comparison.setting.cost.profile
    recipe, usual = setting.cost.recipe, {*CHOICES} - {*setting.cost.recipe.unusual}
    if setting.sharded_by or (setting.cost.cluster.nodes == 1 and recipe.sharding == "full"):
        usual.add("sharding")  # by the rule
    facts = []
    for name, value in (inputs(setting) | {name: recipe.value(name) for name in ASKED}).items():
        if value is not None and name != PART:
            text = f"{value:,}" if type(value) is int else str(value)
            text = "yes" if value is True else "no" if value is False else text
            facts.append((name.replace("_", " "), text + (" (default)" if name in usual else "")))
    facts.append(("fidelity", comparison.fidelity))
    facts.append(("range of the cost's seconds", from_to(profile.low, profile.high, ratio)))
    shape = f" {page.badge(setting_words.SHAPE)}" if setting_words.SHAPE in setting.trace.origin else ""
    words = f"{counted(len(facts), 'input')}, of which {sum('(default)' in text for _, text in facts)} are defaults"
    return [f"<h2>Inputs, and where they come from{shape}</h2>", page.folded(words, [page.facts(facts)])]
