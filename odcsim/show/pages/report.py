"""The report: one HTML file that opens without network and says what was asked, what came out and what it rests on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from odcsim import plots
from odcsim.answer import AnswerTable
from odcsim.decide.comparison import Comparison, inputs
from odcsim.decide.decision import Decision, decide, rows_to_show
from odcsim.decide.levers import Levers, levers
from odcsim.plots.gantt import idle
from odcsim.plots.rows import ceiling
from odcsim.recipe import ASKED, CHOICES, PART
from odcsim.results.summary import Row
from odcsim.say import comparison_words, lever_words, row_words, setting_words
from odcsim.show.pages import page
from odcsim.support.numbers import counted, from_to, ratio
from odcsim.support.outputs import write_text
from odcsim.support.values import expect


def write_report(
    comparison: Comparison,
    path: Path | str,
    sweep: Sequence[tuple[int, Comparison]] = (),
    *,
    epochs: float | None = None,
    found: Levers | None = None,
) -> None:
    """`sweep` is what `sweep_max_tokens` returned, and `epochs` a whole training run, where somebody asked for them.
    `found`: its levers, where somebody has them."""
    expect(comparison, Comparison, "comparison", "odcsim.compare")
    write_text(Path(path), report(comparison, sweep, epochs, found))


def report(
    comparison: Comparison,
    sweep: Sequence[tuple[int, Comparison]] = (),
    epochs: float | None = None,
    found: Levers | None = None,
) -> str:
    if epochs is not None:
        sweep = [(limit, _over(other, epochs)) for limit, other in sweep]
        comparison = _over(comparison, epochs)
    decision = decide(comparison)
    cost, trace = comparison.setting.cost, comparison.setting.trace
    where = f"{cost.cluster.gpus} x {cost.profile.gpu}"
    title = f"How to train {cost.model.name} on {where}, with lengths like those of {trace.name}?"
    order = "In order of speed. Marked: the row to choose, and collective + lb-micro."
    rows = rows_to_show(comparison, decision) if decision.alone else comparison.rows
    body = [
        page.heading(title, 1),
        *_opening(comparison, decision),
        *_levers(levers(comparison) if found is None else found),
        *_on_demand(comparison, decision),
        page.heading("Every balancer" if decision.alone else "Every balancer under every sync"),
        page.paragraph(f"{comparison_words.basis(comparison)} {order}", "note"),
        *_rows(comparison, decision),
        plots.embed(plots.speedups(rows), "speedups"),
        plots.embed(plots.idle(rows), "idle"),
        *_pair(comparison, decision),
        *(_sweep(sweep) if sweep else []),
        *_memory(decision),
        page.heading("Your lengths"),
        plots.embed(plots.lengths(trace), "lengths"),
        *_origins(comparison),
    ]
    return page.with_figures(title, body)


def _over(comparison: Comparison, epochs: float) -> Comparison:
    """The same, asked for so many epochs."""
    return replace(comparison, setting=replace(comparison.setting, epochs=epochs))


def _opening(comparison: Comparison, decision: Decision) -> list[str]:
    """What to run, what it takes, how sure that is. Figures are of the whole training run, where somebody asked for
    one."""
    badges = [f"seconds: {comparison.fidelity}"]
    badges += [f"lengths: {setting_words.SHAPE}"] if setting_words.SHAPE in comparison.setting.trace.origin else []
    return [
        page.answer(comparison_words.advice(comparison, decision)),
        page.key_figures(comparison_words.figures(comparison, decision)),
        f"<p>{' '.join(map(page.badge, badges))}</p>",
    ]


def _on_demand(comparison: Comparison, decision: Decision) -> list[str]:
    """What it gives, and how far to trust all this."""
    gain = "Would on-demand communication pay?" if decision.balanced is None else "What would you gain with odc_engine?"
    gain = "Which balancer?" if decision.alone and decision.balanced is None else gain
    return [
        page.heading(gain),
        page.answer([comparison_words.headline(decision)], yes=decision.pays),
        *(page.paragraph(sentence) for sentence in comparison_words.sentences(comparison, decision)),
    ]


def _levers(found: Levers) -> list[str]:
    """Why devices idle, and what would cost less."""
    said = lever_words.answer(found)
    tables = [part for one in said.tables for part in (page.table(one), page.paragraph(one.says, "note"))]
    rest = map(page.paragraph, said.sentences)
    return [page.heading(lever_words.NAME), page.paragraph(said.headline), *tables, *rest] if found.cause else []


def _rows(comparison: Comparison, decision: Decision) -> list[str]:
    """The rows that the answer names and the best of each sync, and behind a line to open all others."""

    def table(ordered: Sequence[Row], name: str) -> str:
        marks = [comparison_words.mark(row, decision) for row in ordered]
        head, cells = row_words.table([comparison.spent(row) for row in ordered], row_words.PAGE)
        return page.table(AnswerTable(head, cells, f"{name}: of {comparison.basis}", marks=marks))

    few, others = comparison_words.parted(comparison, decision)
    first = table(few, "The rows to choose from")
    words = f"{counted(len(others), 'more row')}: slower than the best of their sync, or over memory"
    return [first, page.folded(words, [table(others, "Every other row")])] if others else [first]


def _pair(comparison: Comparison, decision: Decision) -> list[str]:
    """What to run against what is run today, in the minibatch that idles as the table says; drawn to one scale."""
    if (chosen := decision.drawn) is decision.reference:
        return []
    pair = [row.pair for row in (decision.reference, chosen)]
    number = comparison.typical(*pair)
    timelines = [comparison.timeline(*row, number) for row in pair]
    spans = [float(t.blocks[0].had.max()) for t in timelines]
    lost = [idle(*t.block_of(0)) for t in timelines]
    words = f"Both charts run the same {timelines[0].samples[0]} samples, on one time scale: "
    words += f"minibatch {number}. Its idle time "
    words += f"({lost[0]:.0%} and {lost[1]:.0%}) is closest to that of all {comparison.setting.minibatches} "
    words += f"({decision.reference.idle:.0%} and {chosen.idle:.0%}). "
    words += f"The upper chart takes {spans[0] / spans[1]:.2f} times as long."
    drawn = [plots.gantt(t, 0, until=max(spans), number=number) for t in timelines]
    charts = [plots.embed(chart, name) for chart, name in zip(drawn, ("gantt-before", "gantt-after"), strict=True)]
    return [page.heading("One minibatch, device by device"), page.paragraph(words), *charts]


def _sweep(sweep: Sequence[tuple[int, Comparison]]) -> list[str]:
    """The speedups, and the fastest row at each limit with what it costs; what does not fit is said so."""
    best = [comparison.spent(decide(comparison).chosen) for _, comparison in sweep]
    names, texts = row_words.table(best, row_words.LIMITS)
    cells = [[f"{limit:,}", *row] for (limit, _), row in zip(sweep, texts, strict=True)]
    marks = ["reference" if row.memory_fits is False else "" for row in best]
    room, points = sweep[0][1].memory_limit, [(limit, comparison.rows) for limit, comparison in sweep]
    words = f"{comparison_words.basis(sweep[0][1])} The speedup is over collective + lb-micro at the same limit."
    words += f" A GPU has {room / 1e9:.0f} GB." if room else ""
    head, name = ["tokens of a microbatch", "fastest row", *names[1:]], "The fastest row at each token limit"
    return [
        page.heading("How many tokens should a microbatch hold?"),
        plots.embed(plots.sweep(points), "sweep"),
        plots.embed(ceiling(points, room), "ceiling"),
        page.table(AnswerTable(head, cells, name, marks=marks)),
        page.paragraph(words, "note"),
    ]


def _memory(decision: Decision) -> list[str]:
    """What the memory of the rows that count is for."""
    table = comparison_words.memory_table(decision)
    words = "Peak memory of one device in a minibatch (GB), by use."
    return [page.heading("Memory"), page.table(table), page.paragraph(words, "note")] if table.head[1:] else []


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
