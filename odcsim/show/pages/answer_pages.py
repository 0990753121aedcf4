"""Answers as pages: what to rent, where on-demand stops paying, where a run loses time, how far off seconds are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from odcsim import plots
from odcsim.decide.advice import Advice
from odcsim.decide.break_even import BreakEven
from odcsim.decide.decision import NOTABLE
from odcsim.decide.diagnosis.result import Diagnosis
from odcsim.decide.levers import Levers
from odcsim.plots.diagnosis import ran_step, worst
from odcsim.plots.gantt import makespan
from odcsim.plots.pareto import Priced, pareto
from odcsim.plots.rows import lead
from odcsim.plots.svg import svg
from odcsim.results import metrics
from odcsim.results.validation import Validation
from odcsim.say import advice_words, break_even_words, diagnosis_words, timeline_words, validation_words
from odcsim.show.pages import page
from odcsim.support.outputs import write_text
from odcsim.timeline import Timeline


def write_advice(advice: Advice, path: Path | str, found: Levers | None = None) -> None:
    """With time and money of each offer drawn. `found`: its levers, where something can be rented."""
    wish, offers, rent = advice.wish, advice.offers, advice.rent
    pictures = {}
    if offers:
        priced = all(o.dollars is not None for o in offers)
        points = [
            Priced(o.name, o.seconds, (o.dollars or 0.0) if priced else o.row.gpu_hours, *o.factors, taken=o is rent)
            for o in offers
        ]
        money, budget = ("dollars", wish.budget) if priced else ("GPU-hours", None)
        drawn = pareto(points, money, deadline=wish.deadline, budget=budget)
        pictures = {advice_words.OFFERS: [plots.embed(drawn, "pareto")]}
    title = f"What to rent for {wish.question.model} on {wish.trace.name}"
    answer = advice_words.answer(advice, wide=True, levers=found)
    write_text(Path(path), page.of_answer(answer, title, yes=rent is not None, pictures=pictures))


def write_break_even(result: BreakEven, path: Path | str) -> None:
    """With a curve for each thing that is changed."""
    pictures = {}
    for number, curve in enumerate(result.curves):
        labels, leads = [s.label for s in curve.spots], [s.lead for s in curve.spots]
        drawn = lead(curve.title, labels, leads, curve.here, NOTABLE)
        pictures[curve.name] = [plots.embed(drawn, f"curve-{number}")]
    answer, yes = break_even_words.answer(result), (result.lead or 0.0) >= NOTABLE
    title = "Where does on-demand stop paying?"
    write_text(Path(path), page.of_answer(answer, title, yes=yes, pictures=pictures, headed=False))


def write_diagnosis(diagnosis: Diagnosis, path: Path | str) -> None:
    """With the step, its ranks, its worst step and what would change it drawn."""
    run, found, changes = diagnosis.run, diagnosis.found, diagnosis.changes
    pictures = {
        diagnosis_words.PARTS_TABLE: [plots.embed(plots.parts(found), "step")],
        diagnosis_words.RANKS_TABLE: [plots.embed(plots.ranks(found), "ranks")],
        diagnosis_words.WAYS_TABLE: [plots.embed(plots.gains(changes), "gains")] if changes.ways else [],
    }
    if step := worst(run, found):
        pictures[diagnosis_words.PARTS_TABLE].append(plots.embed(ran_step(step), "worst"))
    answer, yes = diagnosis_words.answer(diagnosis), diagnosis.best is not None
    title = "Where do the steps of this run go?"
    write_text(Path(path), page.of_answer(answer, title, yes=yes, pictures=pictures))


def write_validation(validation: Validation, path: Path | str) -> None:
    """With predicted against measured seconds of each minibatch drawn."""
    every = validation.minibatches
    noise = [m.noise for m in every if m.noise is not None]
    drawn = plots.agreement([m.predicted_seconds for m in every], [m.measured_seconds for m in every], noise)
    answer, pictures = validation_words.answer(validation), {"": [plots.embed(drawn, "agreement")]}
    write_text(Path(path), page.of_answer(answer, "Predicted against measured", yes=False, pictures=pictures))


def write_timelines(timelines: Sequence[Timeline], path: Path | str) -> None:
    """With one minibatch of each as a Gantt chart."""
    number = _median(timelines)
    until = max(makespan(*t.block_of(number)) for t in timelines)
    charts = [plots.embed(plots.gantt(t, number, until=until), f"gantt-{i}") for i, t in enumerate(timelines)]
    answer = timeline_words.answer(timelines, number)
    write_text(
        Path(path),
        page.of_answer(
            answer, "Where the time goes", yes=True, pictures={"": [page.heading(f"Minibatch {number}"), *charts]}
        ),
    )


def write_picture(timelines: Sequence[Timeline], path: Path | str) -> None:
    """The same minibatch of each as a small SVG."""
    write_text(Path(path), svg(timelines, _median(timelines)))


def _median(timelines: Sequence[Timeline]) -> int:
    """The minibatch that takes the first of them its median time, of an even number the lower one; all have it."""
    shortest = min(len(t.samples) for t in timelines)
    times = metrics.usage(timelines[0]).makespan[:shortest]
    return int(np.argsort(times, kind="stable")[(shortest - 1) // 2])
