"""The report: one HTML file that opens without network and says what was asked, what came out and what it rests on."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np

import odcsim
from odcsim import plots
from odcsim.decide import answer, answer_words, setting_words
from odcsim.decide.answer import Basis
from odcsim.decide.comparison import Comparison, inputs
from odcsim.plots.gantt import idle
from odcsim.plots.rows import ceiling
from odcsim.plots.svg import svg
from odcsim.recipe import ASKED, PART
from odcsim.results import metrics, summary
from odcsim.show.pages import choice, idling, page
from odcsim.show.pages.opening import opening, question
from odcsim.support.checked import expect
from odcsim.support.files import write_text
from odcsim.support.numbers import counted, from_to, ratio
from odcsim.timeline import Timeline

ASSUMPTIONS = "docs/model"


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
    comparison, sweep = _over(comparison, epochs), [(limit, _over(other, epochs)) for limit, other in sweep]
    reply = answer.answer(comparison)
    basis = answer_words.basis(comparison)
    body = [
        *opening(comparison, reply),
        page.heading("Every balancer under every sync"),
        page.paragraph(f"{basis} In order of speed. Marked: the row to choose, and collective + lb-micro.", "note"),
        *choice.rows(comparison, reply),
        plots.embed(plots.speedups(comparison.rows), "speedups"),
        plots.embed(plots.idle(comparison.rows), "idle"),
        *_pair(comparison, reply),
        *_sweep(sweep),
        *_memory(reply),
        page.heading("Your lengths"),
        plots.embed(plots.lengths(comparison.setting.trace), "lengths"),
        *_origins(comparison),
    ]
    return page.document(question(comparison), body, script=plots.script())


def _over(comparison: Comparison, epochs: float | None) -> Comparison:
    """The same, asked for so many epochs."""
    return comparison if epochs is None else replace(comparison, setting=replace(comparison.setting, epochs=epochs))


def write_timelines(timelines: Sequence[Timeline], path: Path | str) -> None:
    """Timelines beside each other: idle by part, and the same minibatch of each as a Gantt chart."""
    number = _median(timelines)
    blocks = [t.block_of(number) for t in timelines]
    until = max(float(block.had[:, place].max()) for block, place in blocks)
    body = [
        page.heading("Where the time goes", 1),
        page.answer(idling.sentences(timelines)),
        page.paragraph(
            f"{counted(len(timelines), 'timeline')}, and minibatch {number} of each as a Gantt chart.", "asked"
        ),
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


def write_picture(timelines: Sequence[Timeline], path: Path | str) -> None:
    """The same minibatch of each as a small SVG."""
    write_text(Path(path), svg(timelines, _median(timelines)))


def _median(timelines: Sequence[Timeline]) -> int:
    """The minibatch that takes the first of them its median time, of an even number the lower one; all have it."""
    shortest = min(len(t.samples) for t in timelines)
    times = metrics.usage(timelines[0]).makespan[:shortest]
    return int(np.argsort(times, kind="stable")[(shortest - 1) // 2])


def _write(title: str, body: Sequence[str], path: Path | str) -> None:
    write_text(Path(path), page.document(title, body, script=plots.script()))


def _memory(reply: Basis) -> list[str]:
    """What the memory of the rows that count is for."""
    rows = {r.name: r.memory_terms for r in (reply.reference, reply.rival, reply.best) if r.memory_terms}
    names = [name for name in next(iter(rows.values()), {}) if any(terms[name] for terms in rows.values())]
    cells = [[row, *(f"{terms[name] / 1e9:.1f}" for name in names)] for row, terms in rows.items()]
    words = "Peak memory of one device in a minibatch (GB), by use."
    return (
        [
            page.heading("Memory"),
            page.table(["GB", *names], cells, name="Peak memory by use"),
            page.paragraph(words, "note"),
        ]
        if rows
        else []
    )


def _sweep(sweep: Sequence[tuple[int, Comparison]]) -> list[str]:
    """The speedups, and the fastest row at each limit with what it costs; what does not fit is said so."""
    if not sweep:
        return []
    best = [(limit, comparison.spent(answer.answer(comparison).chosen)) for limit, comparison in sweep]
    names, texts = summary.table([row for _, row in best], summary.LIMITS)
    head = ["tokens of a microbatch", "fastest row", *names[1:]]
    cells = [[f"{limit:,}", *row] for (limit, _), row in zip(best, texts, strict=True)]
    room = sweep[0][1].memory_limit
    words = f"{answer_words.basis(sweep[0][1])} The speedup is over collective + lb-micro at the same limit."
    words += f" A GPU has {room / 1e9:.0f} GB." if room else ""
    kinds = ["reference" if row.memory_fits is False else "" for _, row in best]
    points = [(at, c.rows) for at, c in sweep]
    return [
        page.heading("How many tokens should a microbatch hold?"),
        plots.embed(plots.sweep(points), "sweep"),
        plots.embed(ceiling(points, room), "ceiling"),
        page.table(head, cells, kinds, name="The fastest row at each token limit"),
        page.paragraph(words, "note"),
    ]


def _pair(comparison: Comparison, reply: Basis) -> list[str]:
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


def _origins(comparison: Comparison) -> list[str]:
    setting, profile = comparison.setting, comparison.setting.cost.profile
    recipe, usual = setting.cost.recipe, set(setting.cost.recipe.usual)
    if setting.sharded_by or (setting.cost.cluster.nodes == 1 and recipe.sharding == "full"):
        usual.add("sharding")  # by the rule
    known = inputs(setting) | {name: recipe.value(name) for name in ASKED}
    asked = [
        (name.replace("_", " "), _text(value) + (" (default)" if name in usual else ""))
        for name, value in known.items()
        if value is not None and name != PART
    ]
    asked += [
        ("fidelity", comparison.fidelity),
        ("range of the cost's seconds", from_to(profile.low, profile.high, ratio)),
    ]
    shape = f" {page.badge(setting_words.SHAPE)}" if setting_words.SHAPE in setting.trace.origin else ""
    told = f"{counted(len(asked), 'input')}, of which {sum('(default)' in text for _, text in asked)} are defaults"
    inputs_told = page.folded(told, [page.facts(asked)])
    return [f"<h2>Inputs, and where they come from{shape}</h2>", inputs_told, *_closing()]


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
    return [page.answer([words], yes=False)]


def _parts(timelines: Sequence[Timeline]) -> str:
    head = ["timeline", "minibatches", "seconds", "compute", "idle", *(plots.NAMES[part] for part in metrics.PARTS)]
    rows = []
    for timeline in timelines:
        usage = metrics.usage(timeline)
        shares = [1 - usage.idle(), usage.idle(), *usage.idle_parts().values()]
        cells = [timeline.about.title, f"{len(timeline.samples):,}", f"{usage.makespan.sum():,.4g}"]
        rows.append([*cells, *(f"{share:.1%}" for share in shares)])
    return page.table(head, rows, name="Where the time goes")


def _abouts(timelines: Sequence[Timeline]) -> str:
    head = ["timeline", "executor", "hardware", "fidelity", "model", "trace", "schedule"]
    rows = []
    for timeline in timelines:
        about = timeline.about
        waits = about.emulated and about.executor == "engine"
        hardware = f"{about.devices} x {about.hardware}" + (", compute emulated" if waits else "")
        cells = [about.executor, hardware, about.fidelity, about.model, about.trace, about.digest]
        rows.append([timeline.about.title, *cells])
    return page.table(head, rows, name="What these timelines are")


def _queues(timelines: Sequence[Timeline], number: int) -> list[str]:
    """How many entries of a minibatch's shared queue each device ran, where there is one."""
    rows = []
    for timeline in timelines:
        block, place = timeline.block_of(number)
        taken = [len(block.taken(place, device)) for device in range(timeline.about.devices)]
        if sum(taken):
            rows.append([timeline.about.title, timeline.about.executor, f"{sum(taken)}", ", ".join(map(str, taken))])
    head = ["timeline", "executor", "entries of the shared queue", "run by device 0, 1, ..."]
    return [page.table(head, rows, name="Shared queues")] if rows else []
