"""Where on-demand stops paying, as a page: a curve and a sentence for each thing that is changed."""

from collections.abc import Sequence
from pathlib import Path

import odcsim
from odcsim import plots
from odcsim.decide import break_even_words as words
from odcsim.decide.answer import NOTABLE
from odcsim.decide.break_even import Curve, here
from odcsim.decide.setting import Setting
from odcsim.decide.weights import Regret
from odcsim.plots.rows import lead
from odcsim.show.pages import page
from odcsim.support.files import write_text


def write_break_even(
    setting: Setting,
    curves: Sequence[Curve],
    regrets: Sequence[Regret],
    path: Path | str,
    ways_out: Sequence[str] = (),
    *,
    limited: bool = True,
) -> None:
    """`ways_out`: what would fit, where what is asked about does not. Not `limited`: each spot has its own limit."""
    title = "Where does on-demand stop paying?"
    pays = (here(curves) or 0.0) >= NOTABLE
    body = [
        page.heading(title, 1),
        page.answer([words.answer(curves), *([words.misfit(ways_out)] if ways_out else [])], yes=pays),
        page.paragraph(words.question(setting, limited=limited), "asked"),
    ]
    for number, curve in enumerate(curves):
        name = f"{curve.name}, {curve.unit}" if curve.unit else curve.name
        labels, leads = [s.label for s in curve.spots], [s.lead for s in curve.spots]
        body += [
            plots.embed(lead(name, labels, leads, curve.here, NOTABLE), f"curve-{number}"),
            page.paragraph(words.sentence(curve)),
        ]
    body += [page.heading("Wrong weights"), *map(page.paragraph, words.regret_lines(regrets))] if regrets else []
    body.append(f"<footer>{page.paragraph(f'odcsim {odcsim.__version__}')}</footer>")
    write_text(Path(path), page.document(title, body, script=plots.script()))
