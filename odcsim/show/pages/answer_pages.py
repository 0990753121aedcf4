"""Answers as pages: what to rent, where on-demand stops paying, and where the steps of a run go."""

from dataclasses import replace
from pathlib import Path

from odcsim import plots
from odcsim.decide import advice_words, break_even_words
from odcsim.decide.advice import Advice
from odcsim.decide.answer import NOTABLE
from odcsim.decide.break_even import BreakEven
from odcsim.decide.diagnosis import columns, words
from odcsim.decide.diagnosis.asking import Diagnosis
from odcsim.plots.diagnosis import ran_step, worst
from odcsim.plots.pareto import Priced, pareto
from odcsim.plots.rows import lead
from odcsim.results import summary
from odcsim.show.pages import page
from odcsim.support.files import write_text
from odcsim.support.numbers import from_to, ratio, unit


def write_advice(advice: Advice, path: Path | str) -> None:
    """The sentence, the picture of time and money, and every row."""
    wish, offers, rent = advice.wish, advice.offers, advice_words.rented(advice)
    sentences = advice_words.sentences(advice)
    title = f"What to rent for {wish.question.model} on {wish.trace.name}"
    first = 1 if rent is None else 3
    picture = []
    if offers:
        priced = all(o.dollars is not None for o in offers)
        points = [
            Priced(o.name, o.seconds, (o.dollars or 0.0) if priced else o.row.gpu_hours, *o.factors, taken=o is rent)
            for o in offers
        ]
        money, budget = ("dollars", wish.budget) if priced else ("GPU-hours", None)
        picture = [plots.embed(pareto(points, money, deadline=wish.deadline, budget=budget), "pareto")]
    head, cells = summary.table([replace(o.row, memory_bytes=o.memory_bytes) for o in offers], summary.OFFERED)
    rows = [[o.name, *row, o.chosen.way.how] for o, row in zip(offers, cells, strict=True)]
    kinds = ["best" if offer is rent else "" for offer in offers]
    body = [
        page.heading(title, 1),
        page.answer(sentences[:first], yes=rent is not None),
        *map(page.paragraph, sentences[first:]),
        page.heading("Every number of GPUs"),
        *picture,
        page.table(["GPUs", *head, "how"], rows, kinds, name="Offers, cheapest first", wraps=True),
        page.paragraph(f"Time, GPU-hours and dollars are of the whole run, {advice_words.run(wish)}.", "note"),
        *(page.paragraph(f"{r.name}: {r.why}.", "note") for r in advice.refused),
    ]
    write_text(Path(path), page.with_figures(title, body))


def write_break_even(result: BreakEven, path: Path | str) -> None:
    """A curve and a sentence for each thing that is changed."""
    title, notes = "Where does on-demand stop paying?", break_even_words.regrets(result)
    body = [
        page.heading(title, 1),
        page.answer(break_even_words.answer(result), yes=(result.lead or 0.0) >= NOTABLE),
        page.paragraph(break_even_words.question(result), "asked"),
    ]
    for number, curve in enumerate(result.curves):
        labels, leads = [s.label for s in curve.spots], [s.lead for s in curve.spots]
        drawn = lead(curve.title, labels, leads, curve.here, NOTABLE)
        body += [plots.embed(drawn, f"curve-{number}"), page.paragraph(break_even_words.sentence(curve))]
    body += [page.heading("Wrong weights"), *map(page.paragraph, notes)] if notes else []
    write_text(Path(path), page.with_figures(title, body))


def write_diagnosis(diagnosis: Diagnosis, path: Path | str) -> None:
    """The answer, pictures of the step, its ranks and its worst step, and what would change it."""
    title = "Where do the steps of this run go?"
    run, found, changes, best = diagnosis.run, diagnosis.found, diagnosis.changes, diagnosis.best
    figures = [(unit(found.seconds)(found.seconds), "a step takes")]
    figures.append((words.percent(words.idle(found)), "of it is idle"))
    if best is not None:
        figures.append((f"{best.gain:.2f} x", f"as fast: {best.way}, {from_to(best.low, best.high, ratio)}"))
        if best.dollars_a_day is not None:
            figures.append((words.dollars(best.dollars_a_day), "saved a day"))
    body = [
        page.heading(title, 1),
        page.paragraph(words.seen(run), "asked"),
        page.answer([words.answer(run, found, changes)], yes=best is not None),
        page.key_figures(figures),
        page.heading("Where a step goes"),
        plots.embed(plots.parts(found), "step"),
        page.table(*columns.parts(found), name="Parts of the step"),
    ]
    faster = _ways(diagnosis) if changes.ways else []
    faster += [page.paragraph(text, "note") for text in words.rests(changes)]
    faster += [page.paragraph(text) for text in words.remedies(run, found)]
    body += [page.heading("What would make it faster"), *faster] if faster else []
    step, (head, rows) = worst(run, found), columns.ranks(found)
    if rows or step:
        body.append(page.heading("Stragglers: who waits for whom"))
    if step:
        body.append(plots.embed(ran_step(step), "worst"))
    if rows:
        more = f" ({len(rows)} of {len(found.ranks)}, the worst first)" if len(rows) < len(found.ranks) else ""
        body += [plots.embed(plots.ranks(found), "ranks"), page.table(head, rows, name=f"Ranks{more}")]
    head, rows = columns.late(found)
    if rows:
        body += [page.heading("Worst microbatches"), page.table(head, rows, name="Worst microbatches")]
    if lines := words.untold(run, found, changes):
        body += [page.heading("What is not known"), *map(page.paragraph, lines)]
    write_text(Path(path), page.with_figures(title, body))


def _ways(diagnosis: Diagnosis) -> list[str]:
    ways = diagnosis.changes.ways
    head, rows = columns.ways(diagnosis.changes)
    numbered = [(f"{number} {row[0]}", *row[1:]) for number, row in enumerate(rows, 1)]
    kinds = ["best" if one is diagnosis.best else "" for one in ways]
    sets = [f"{number}: set {one.setting}." for number, one in enumerate(ways, 1) if one.setting]
    rests = [f"{number}: rests on: {one.rests}." for number, one in enumerate(ways, 1) if one.rests]
    return [
        plots.embed(plots.gains(diagnosis.changes), "gains"),
        page.table(head, numbered, kinds, name="Ways, least effort first"),
        *(page.paragraph(text) for text in sets),
        *(page.paragraph(text, "note") for text in rests),
    ]
