"""An advice as a page: the sentence, the picture of time and money, and every row."""

from dataclasses import replace
from pathlib import Path

import odcsim
from odcsim import plots
from odcsim.decide import advice_words
from odcsim.decide.advice import Advice, Offer
from odcsim.plots.pareto import Priced, pareto
from odcsim.results import summary
from odcsim.show.pages import page
from odcsim.support.files import write_text


def write_advice(advice: Advice, path: Path | str) -> None:
    wish, rent = advice.wish, advice_words.rented(advice)
    said = advice_words.sentences(advice)
    title = f"What to rent for {wish.question.model} on {wish.trace.name}"
    shown = 1 if rent is None else 3
    body = [
        page.heading(title, 1),
        page.answer(said[:shown], yes=rent is not None),
        *map(page.paragraph, said[shown:]),
        page.heading("Every number of GPUs"),
        *([_picture(advice, rent)] if advice.offers else []),
        _table(advice, rent),
        page.paragraph(f"Time, GPU-hours and dollars are of the whole run, {advice_words.run(wish)}.", "note"),
        *(page.paragraph(f"{r.name}: {r.why}.", "note") for r in advice.refused),
        f"<footer>{page.paragraph(f'odcsim {odcsim.__version__}')}</footer>",
    ]
    write_text(Path(path), page.document(title, body, script=plots.script()))


def _picture(advice: Advice, rent: Offer | None) -> str:
    priced = all(o.dollars is not None for o in advice.offers)
    spent = [(o.dollars or 0.0) if priced else o.row.gpu_hours for o in advice.offers]
    points = [
        Priced(o.name, o.seconds, value, *o.factors, taken=o is rent)
        for o, value in zip(advice.offers, spent, strict=True)
    ]
    unit = "dollars" if priced else "GPU-hours"
    drawn = pareto(points, unit, deadline=advice.wish.deadline, budget=advice.wish.budget if priced else None)
    return plots.embed(drawn, "pareto")


def _table(advice: Advice, rent: Offer | None) -> str:
    head, cells = summary.table([replace(o.row, memory_bytes=o.memory_bytes) for o in advice.offers], summary.OFFERED)
    kinds = ["best" if offer is rent else "" for offer in advice.offers]
    rows = [[o.name, *row, o.chosen.way.how] for o, row in zip(advice.offers, cells, strict=True)]
    return page.table(["GPUs", *head, "how"], rows, kinds, name="Offers, cheapest first", told=True)
