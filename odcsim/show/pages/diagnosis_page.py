"""A diagnosis as a page: the answer, pictures of the step, its ranks and its worst step, and what would change it."""

from pathlib import Path

import odcsim
from odcsim import plots
from odcsim.decide.diagnosis import columns, words
from odcsim.decide.diagnosis.asking import Diagnosis
from odcsim.plots.diagnosis import ran_step, worst
from odcsim.show.pages import page
from odcsim.support.files import write_text
from odcsim.support.numbers import from_to, ratio, unit

TITLE = "Where do the steps of this run go?"


def write_diagnosis(told: Diagnosis, path: Path | str) -> None:
    run, found, changes = told.run, told.found, told.changes
    body = [
        page.heading(TITLE, 1),
        page.paragraph(words.seen(run), "asked"),
        page.answer([words.answer(run, found, changes)], yes=told.best is not None),
        page.key_figures(_figures(told)),
        page.heading("Where a step goes"),
        plots.embed(plots.parts(found), "step"),
        page.table(*columns.parts(found), name="Parts of the step"),
        *_changes(told),
        *_ranks(told),
        *_late(told),
        *_rest(told),
        f"<footer>{page.paragraph(f'odcsim {odcsim.__version__}')}</footer>",
    ]
    write_text(Path(path), page.document(TITLE, body, script=plots.script()))


def _figures(told: Diagnosis) -> list[tuple[str, str]]:
    found, best = told.found, told.best
    figures = [
        (unit(found.seconds)(found.seconds), "a step takes"),
        (words.percent(words.idle(found)), "of it is idle"),
    ]
    if best is None:
        return figures
    figures.append((f"{best.gain:.2f} x", f"as fast: {best.way}, {from_to(best.low, best.high, ratio)}"))
    if best.dollars_a_day is not None:
        figures.append((words.dollars(best.dollars_a_day), "saved a day"))
    return figures


def _changes(told: Diagnosis) -> list[str]:
    looked = [page.paragraph(text) for text in words.remedies(told.run, told.found)]
    resting = [page.paragraph(text, "note") for text in words.rests(told.changes)]
    inside = [*(_ways(told) if told.changes.ways else []), *resting, *looked]
    return [page.heading("What would make it faster"), *inside] if inside else []


def _ways(told: Diagnosis) -> list[str]:
    ways = told.changes.ways
    head, rows = columns.ways(told.changes)
    numbered = [(f"{number} {row[0]}", *row[1:]) for number, row in enumerate(rows, 1)]
    kinds = ["best" if one is told.best else "" for one in ways]
    sets = [f"{number}: set {one.setting}" for number, one in enumerate(ways, 1) if one.setting]
    resting = [f"{number}: rests on: {one.rests}" for number, one in enumerate(ways, 1) if one.rests]
    return [
        plots.embed(plots.gains(told.changes), "gains"),
        page.table(head, numbered, kinds, name="Ways, least effort first"),
        *(page.paragraph(f"{text}.") for text in sets),
        *(page.paragraph(f"{text}.", "note") for text in resting),
    ]


def _ranks(told: Diagnosis) -> list[str]:
    found, step = told.found, worst(told.run, told.found)
    head, rows = columns.ranks(found)
    if not rows and step is None:
        return []
    more = f" ({len(rows)} of {len(found.ranks)}, the worst first)" if len(rows) < len(found.ranks) else ""
    return [
        page.heading("Stragglers: who waits for whom"),
        *([plots.embed(ran_step(step), "worst")] if step else []),
        *([plots.embed(plots.ranks(found), "ranks")] if rows else []),
        *([page.table(head, rows, name=f"Ranks{more}")] if rows else []),
    ]


def _late(told: Diagnosis) -> list[str]:
    head, rows = columns.late(told.found)
    return [page.heading("Worst microbatches"), page.table(head, rows, name="Worst microbatches")] if rows else []


def _rest(told: Diagnosis) -> list[str]:
    lines = words.untold(told.run, told.found, told.changes)
    return [page.heading("What is not known"), *map(page.paragraph, lines)] if lines else []
