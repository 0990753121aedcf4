"""An advice as a page: the sentence, the picture of time and money, and every row."""

from pathlib import Path

import odcsim
from odcsim import plots
from odcsim.advice import reply
from odcsim.advice.offers import Advice, Offer
from odcsim.command import duration
from odcsim.files import write_text
from odcsim.pages import page
from odcsim.plots.pareto import Priced, pareto
from odcsim.questions.answer import money

HEAD = ("GPUs", "time", "nine times in ten", "GPU-hours", "dollars", "nine times in ten", "how", "memory (GB)")


def write_advice(advice: Advice, path: Path | str) -> None:
    wish, rent = advice.wish, reply.rented(advice)
    said = reply.sentences(advice)
    title = f"What to rent for {wish.question.model} on {wish.trace.name}"
    shown = 1 if rent is None else 3
    kinds = ["best" if o is rent else "" for o in advice.offers]
    body = [
        page.heading(title, 1),
        f'<div class="answer{" no" if rent is None else ""}">{"".join(map(page.paragraph, said[:shown]))}</div>',
        *map(page.paragraph, said[shown:]),
        *([_picture(advice, rent)] if advice.offers else []),
        page.heading("Every number of GPUs"),
        page.table(HEAD, map(_cells, advice.offers), kinds, name="Offers, cheapest first"),
        *(page.paragraph(f"{r.name}: {r.why}.", "note") for r in advice.refused),
        f"<footer>{page.paragraph(f'odcsim {odcsim.__version__}')}</footer>",
    ]
    write_text(Path(path), page.document(title, body, script=plots.script()))


def _picture(advice: Advice, rent: Offer | None) -> str:
    priced = all(o.dollars is not None for o in advice.offers)
    spent = [(o.dollars or 0.0) if priced else o.gpu_hours for o in advice.offers]
    points = [
        Priced(o.name, o.seconds, value, *o.factors, taken=o is rent)
        for o, value in zip(advice.offers, spent, strict=True)
    ]
    unit = "dollars" if priced else "GPU-hours"
    drawn = pareto(points, unit, deadline=advice.wish.deadline, budget=advice.wish.budget if priced else None)
    return plots.embed(drawn, "pareto")


def _cells(offer: Offer) -> list[str]:
    low, high = offer.factors
    way, paid = offer.chosen.way, offer.dollars
    return [
        offer.name,
        duration(offer.seconds),
        f"{duration(offer.seconds * low)} to {duration(offer.seconds * high)}",
        f"{offer.gpu_hours:,.1f}",
        "" if paid is None else money(paid),
        "" if paid is None else f"{money(paid * low)} to {money(paid * high)}",
        f"{way.name}, {way.setting.limit:,} tokens, {way.words}",
        f"{offer.memory / 1e9:.0f}",
    ]
