"""The report: one HTML file that opens without network and says what was asked, what came out and what it rests on."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np

import odcsim
from odcsim import plots
from odcsim.executors.simulation import Simulation, simulate
from odcsim.files import write_text
from odcsim.pages import page
from odcsim.questions import answer
from odcsim.questions.answer import ROBUST, Basis, dollars_between, hours_between, money, named
from odcsim.questions.comparison import RIVAL, Comparison, inputs
from odcsim.questions.setting import plan
from odcsim.results import metrics
from odcsim.results.summary import REFERENCE, Row
from odcsim.timeline import Floats, Timeline

ASSUMPTIONS = "docs/model.md"
PAIR = (REFERENCE, (ROBUST, "on-demand"))  # the two that are drawn as Gantt charts


def write_report(comparison: Comparison, path: Path | str, sweep: Sequence[tuple[int, Comparison]] = ()) -> None:
    """`sweep` is what `sweep_max_tokens` returned, where somebody asked for it."""
    reply = answer.answer(comparison)
    body = [
        *_opening(comparison, reply),
        page.heading("Every balancer under every sync"),
        _rows(comparison, reply),
        page.paragraph("In order of speed. Marked: the row to choose, and collective + lb-micro.", "note"),
        plots.embed(plots.speedups(comparison.rows), "speedups"),
        plots.embed(plots.idle(comparison.rows), "idle"),
        *_sweep(sweep),
        *_memory(reply),
        page.heading("Your lengths"),
        plots.embed(plots.lengths(comparison.setting.trace), "lengths"),
        *_pair(comparison),
        *_origins(comparison),
    ]
    _write("Would on-demand communication pay here?", body, path)


def write_timelines(timelines: Sequence[Timeline], path: Path | str) -> None:
    """Timelines beside each other: idle by part, and the same minibatch of each as a Gantt chart."""
    shortest = min(len(t.samples) for t in timelines)
    number = _median(metrics.usage(timelines[0]).makespan[:shortest])
    blocks = [t.block_of(number) for t in timelines]
    until = max(float(block.had[:, place].max()) for block, place in blocks)
    body = [
        page.heading("Where the time goes", 1),
        page.paragraph(f"{len(timelines)} timelines, and minibatch {number} of each as a Gantt chart.", "asked"),
        *_digests(timelines),
        _parts(timelines),
        page.paragraph("Seconds are summed over minibatches; everything else is a share of device time.", "note"),
        page.heading("What these timelines are"),
        _abouts(timelines),
        page.heading(f"Minibatch {number}"),
        *_queues(timelines, number),
        *(plots.embed(plots.gantt(t, number, until=until), f"gantt-{i}") for i, t in enumerate(timelines)),
        *_closing(),
    ]
    _write("Where the time goes", body, path)


def _write(title: str, body: Sequence[str], path: Path | str) -> None:
    write_text(Path(path), page.document(title, body, script=plots.script()))


def _opening(comparison: Comparison, reply: Basis) -> list[str]:
    words = "".join(page.paragraph(text) for text in [answer.verdict(reply), *answer.misfit(comparison, reply)])
    best, chosen, before = reply.best, reply.chosen, reply.reference
    figures = [
        (f"{best.speedup:.2f} x", f"{named(best)} over collective + lb-micro, {answer.interval(best)}"),
        (f"{reply.over_rival:.2f} x", f"over the best row without on-demand, {named(reply.rival)}"),
        (f"{before.idle:.0%} → {chosen.idle:.0%}", f"idle, from collective + lb-micro to {named(chosen)}"),
        (f"{chosen.gpu_hours:.3g}", _spent("GPU-hours ", chosen, hours_between(chosen), f"{before.gpu_hours:.3g}")),
    ]
    if chosen.dollars is not None and before.dollars is not None:
        paid = _spent("", chosen, dollars_between(chosen), money(before.dollars))
        figures.append((money(chosen.dollars), paid))
    return [
        page.heading(answer.question(comparison), 1),
        f'<div class="answer{"" if reply.pays else " no"}">{words}</div>',
        page.key_figures(figures),
        f"<p>{_badges(comparison)}</p>",
        *(page.paragraph(sentence) for sentence in answer.sentences(comparison, reply)),
    ]


def _spent(what: str, chosen: Row, between: str, before: str) -> str:
    return f"{what}for {chosen.minibatches} minibatches{between}, {before} before"


def _badges(comparison: Comparison) -> str:
    shape = [f"lengths: {answer.SHAPE}"] if answer.SHAPE in comparison.setting.trace.origin else []
    return " ".join(page.badge(text) for text in [f"seconds: {comparison.fidelity}", *shape])


def _rows(comparison: Comparison, reply: Basis) -> str:
    priced = comparison.price is not None
    head = ["sync + balancer", "speedup (95 % interval)", "over best collective", "idle", "seconds", "GPU-hours"]
    head += [*(["dollars"] if priced else []), "MFU", "samples/s per device", "tokens/s", "memory (GB)"]
    ordered = sorted(comparison.rows, key=lambda r: r.makespan_seconds)
    kinds = ["best" if r is reply.chosen else "reference" if r is reply.reference else "" for r in ordered]
    return page.table(head, [_cells(r, priced) for r in ordered], kinds)


def _cells(row: Row, priced: bool) -> list[str]:
    cells = [named(row), f"{row.speedup:.2f} ({row.speedup_low:.2f} to {row.speedup_high:.2f})"]
    cells += [f"{row.speedup_best_collective:.2f}", f"{row.idle:.1%}", f"{row.makespan_seconds:,.1f}"]
    price = [f"{money(row.dollars or 0.0)}{dollars_between(row)}"] if priced else []
    cells += [f"{row.gpu_hours:.3g}{hours_between(row)}", *price, "" if row.mfu is None else f"{row.mfu:.1%}"]
    memory = "" if row.memory_bytes is None else f"{row.memory_bytes / 1e9:.0f}"
    too_much = f" (too much: {row.largest_term})" if row.memory_fits is False else ""
    return [*cells, f"{row.samples_per_second_per_device:.3g}", f"{row.tokens_per_second:,.0f}", memory + too_much]


def _memory(reply: Basis) -> list[str]:
    """What the memory of the rows that count is for."""
    rows = {named(r): r.memory_terms for r in (reply.reference, reply.rival, reply.best) if r.memory_terms}
    names = [name for name in next(iter(rows.values()), {}) if any(terms[name] for terms in rows.values())]
    cells = [[row, *(f"{terms[name] / 1e9:.1f}" for name in names)] for row, terms in rows.items()]
    words = "GB of one device at the fullest moment of a minibatch, by what they are for."
    return [page.heading("Memory"), page.table(["GB", *names], cells), page.paragraph(words, "note")] if rows else []


def _sweep(sweep: Sequence[tuple[int, Comparison]]) -> list[str]:
    return [plots.embed(plots.sweep([(at, c.rows) for at, c in sweep]), "sweep")] if sweep else []


def _pair(comparison: Comparison) -> list[str]:
    """The minibatch whose speedup is the median of all, under both; drawn to one scale."""
    spent = {(r.balancer, r.sync): u.makespan for r, u in zip(comparison.rows, comparison.usages, strict=True)}
    number = _median(spent[PAIR[0]] / spent[PAIR[1]])
    timelines = [_one(comparison, balancer, sync, number) for balancer, sync in PAIR]
    spans = [float(t.blocks[0].had.max()) for t in timelines]
    words = f"The same {timelines[0].samples[0]} samples twice, on one scale: minibatch {number}, whose speedup of "
    words += f"{spans[0] / spans[1]:.2f} is the median of all {comparison.setting.minibatches}."
    drawn = [plots.gantt(t, 0, until=max(spans), number=number) for t in timelines]
    charts = [plots.embed(chart, name) for chart, name in zip(drawn, ("gantt-before", "gantt-after"), strict=True)]
    return [page.heading("One minibatch, device by device"), page.paragraph(words), *charts]


def _one(comparison: Comparison, balancer: str, sync: str, number: int) -> Timeline:
    """One minibatch alone, since the spans of all of them may not fit in memory."""
    setting = comparison.setting
    file = plan(setting, balancer)
    alone = replace(file, schedules=file.schedules[number : number + 1])
    return simulate(alone, Simulation(setting.cost, sync, comparison.executor, seed=setting.seed, exchange=RIVAL))


def _median(values: Floats) -> int:
    """Where the median is; of an even number of values the lower one, so that it exists."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])


def _origins(comparison: Comparison) -> list[str]:
    setting, profile = comparison.setting, comparison.setting.cost.profile
    asked = [(name.replace("_", " "), _text(value)) for name, value in inputs(comparison).items() if value is not None]
    asked += [("fidelity", comparison.fidelity), ("range of seconds", f"{profile.low:g} to {profile.high:g} times")]
    shape = f" {page.badge(answer.SHAPE)}" if answer.SHAPE in setting.trace.origin else ""
    return [f"<h2>Inputs, and where they come from{shape}</h2>", page.facts(asked), *_closing()]


def _text(value: object) -> str:
    return f"{value:,}" if type(value) is int else "yes" if value is True else "no" if value is False else str(value)


def _closing() -> list[str]:
    link = f"<code>{escape(ASSUMPTIONS)}</code> of odcsim's repository"
    words = f"odcsim {odcsim.__version__}. What the model assumes, and what it leaves out: {link} beside its source."
    return [f"<footer><p>{words}</p></footer>"]


def _digests(timelines: Sequence[Timeline]) -> list[str]:
    if len({t.about.digest for t in timelines}) == 1:
        return []
    words = "These timelines ran different schedules (their digests differ). Do they hold the same samples? If so, "
    words += "differences come from sync and balancer together; if not, they say nothing."
    return [f'<div class="answer no">{page.paragraph(words)}</div>']


def _parts(timelines: Sequence[Timeline]) -> str:
    head = ["timeline", "minibatches", "seconds", "compute", "idle", *(plots.NAMES[part] for part in metrics.PARTS)]
    rows = []
    for timeline in timelines:
        usage = metrics.usage(timeline)
        shares = [1 - usage.idle(), usage.idle(), *usage.idle_parts().values()]
        cells = [timeline.about.title, f"{len(timeline.samples):,}", f"{usage.makespan.sum():,.4g}"]
        rows.append([*cells, *(f"{share:.1%}" for share in shares)])
    return page.table(head, rows)


def _abouts(timelines: Sequence[Timeline]) -> str:
    head = ["timeline", "executor", "hardware", "fidelity", "model", "trace", "schedule"]
    rows = []
    for timeline in timelines:
        about = timeline.about
        hardware = f"{about.devices} x {about.hardware}" + (", compute emulated" if about.emulated else "")
        cells = [about.executor, hardware, about.fidelity, about.model, about.trace, about.digest]
        rows.append([timeline.about.title, *cells])
    return page.table(head, rows)


def _queues(timelines: Sequence[Timeline], number: int) -> list[str]:
    """How many entries of a minibatch's shared queue each device ran, where there is one."""
    rows = []
    for timeline in timelines:
        block, place = timeline.block_of(number)
        taken = [len(block.taken(place, device)) for device in range(timeline.about.devices)]
        if sum(taken):
            rows.append([timeline.about.title, timeline.about.executor, f"{sum(taken)}", ", ".join(map(str, taken))])
    head = ["timeline", "executor", "entries of the shared queue", "run by device 0, 1, ..."]
    return [page.table(head, rows)] if rows else []
