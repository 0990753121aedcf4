"""An advice for people: what was asked, a table of 80 columns, and the answer in words."""

from textwrap import wrap
from typing import TYPE_CHECKING

from odcsim.support import tables

if TYPE_CHECKING:
    from odcsim.decide.advice import Advice, Offer

HEAD = ("GPUs", "time", "90 %", "dollars", "90 %")
UNPRICED = ("GPUs", "time", "90 %", "GPU-hours", "90 %")
WIDTHS = (-16, 13, 22, 10, 18)
LINE, INDENT = 79, "    "


def show(advice: "Advice") -> None:
    from odcsim.decide import advice_words

    wish = advice.wish
    tried = sum(offer.ways for offer in advice.offers)
    print(f"{advice_words.question(wish)}, {tried:,} ways to run\n")
    if advice.offers:
        priced = all(offer.dollars is not None for offer in advice.offers)
        print(*tables.lines([HEAD if priced else UNPRICED], WIDTHS), sep="\n")
        for offer in advice.offers:
            print(*_lines(offer, "" if offer.within(wish) else "  *"), sep="\n")
        if any(not offer.within(wish) for offer in advice.offers):
            print(f"* not{advice_words.limits(wish)}")
    for refused in advice.refused:
        print(f"{refused.name}: {refused.why}")
    print()
    print(*advice_words.sentences(advice), sep="\n")


def _lines(offer: "Offer", mark: str) -> list[str]:
    """Two for each: what it comes to, and how it runs."""
    from odcsim.results.summary import COLUMNS

    paid = "gpu_hours" if offer.dollars is None else "dollars"
    names = ("time", "time between", paid, f"{paid} between")
    row = (f"{offer.name}{mark}", *(COLUMNS[name].text(offer.row) for name in names))
    how = f"{offer.chosen.way.how}; {_used(offer)}"
    return [
        *tables.lines([row], WIDTHS),
        *wrap(how, LINE, initial_indent=INDENT, subsequent_indent=INDENT),
    ]


def _used(offer: "Offer") -> str:
    """Memory, and how much of the devices is used."""
    from odcsim.results import capacity
    from odcsim.results.summary import COLUMNS

    reached = f", MFU {COLUMNS['mfu'].text(offer.row)}" if offer.row.mfu is not None else ""
    return f"{capacity.told(offer)}, idle {COLUMNS['idle'].text(offer.row)}{reached}"
