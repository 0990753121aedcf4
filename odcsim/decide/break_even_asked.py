"""Where on-demand stops paying, for who asks by names and paths: of a command line, or in Python."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from odcsim.decide import break_even_words, setting_words
from odcsim.decide.answer import NOTABLE
from odcsim.decide.asking import asked, read, setting_of
from odcsim.decide.break_even import MINIBATCHES, Curve, curves, here, trusted
from odcsim.decide.comparison import fixed, inputs
from odcsim.decide.remedies import misfits, remedies
from odcsim.decide.setting import Setting
from odcsim.decide.weights import Regret, regrets
from odcsim.decide.words import BREAK_EVEN
from odcsim.errors import InputError, nearest
from odcsim.question import Question
from odcsim.support.glance import Glance, Glanced
from odcsim.support.numbers import from_to, ratio
from odcsim.trace import Trace


@dataclass(frozen=True, slots=True, repr=False)
class BreakEven(Glanced):
    """The lead of on-demand as one thing after the other is changed. Not `limited`: each spot has its own limit."""

    setting: Setting
    limited: bool
    curves: tuple[Curve, ...]
    regrets: tuple[Regret, ...]
    ways_out: tuple[str, ...]  # what would fit, where what is asked about does not
    fidelity: str  # of the seconds where nothing is changed

    def curve(self, name: str) -> Curve:
        known = {curve.name: curve for curve in self.curves}
        if name not in known:
            raise InputError(f"no curve of {name!r:.40}", fix=nearest(str(name), list(known)))
        return known[name]

    def sentences(self) -> list[str]:
        """Whether it pays here, and where it would by what is changed."""
        told = [f"{curve.name}: {break_even_words.sentence(curve)}" for curve in self.curves]
        unfit = [break_even_words.misfit(self.ways_out)] if self.ways_out else []
        return [break_even_words.answer(self.curves), *unfit, *told, *self.notes()]

    def notes(self) -> list[str]:
        """What balancing by other weights costs, and what was extrapolated."""
        return [
            *break_even_words.regret_lines(self.regrets),
            *setting_words.doubts(self.fidelity, self.setting.cost.profile),
        ]

    def as_json(self) -> dict[str, Any]:
        """As `odcsim break-even --json` prints it."""
        asked_and_held = {"inputs": inputs(self.setting), "held_fixed": fixed(self.setting, limited=self.limited)}
        kinds = [{**asdict(c), "crossings": c.crossings} for c in self.curves]
        told = {"curves": kinds, "regrets": [asdict(r) for r in self.regrets], "ways_out": list(self.ways_out)}
        return {"schema": 1, **asked_and_held, "fidelity": self.fidelity, "lead": here(self.curves), **told}

    def records(self) -> list[dict[str, Any]]:
        """A row for each spot of each curve."""
        return [
            {"changed": curve.name, "unit": curve.unit, **asdict(spot), "here": spot.label == curve.here,
             "pays": None if spot.lead is None else spot.lead >= NOTABLE}
            for curve in self.curves
            for spot in curve.spots
        ]  # fmt: skip

    def _glance(self) -> Glance:
        rows = [
            (f"{c.name}, {c.unit}" if c.unit else c.name, c.here, _leads(c), break_even_words.sentence(c))
            for c in self.curves
        ]
        detail = break_even_words.question(self.setting, limited=self.limited)
        about, head = setting_words.named(self.setting), ("changed", "here", "on-demand speedup", "")
        return Glance("BreakEven", about, self.sentences()[:1], head, rows, detail)


def _leads(curve: Curve) -> str:
    return from_to(min(curve.leads), max(curve.leads), ratio) if curve.leads else "-"


def break_even(trace: Trace | str | os.PathLike[str] | ArrayLike, model: str, **words: Any) -> BreakEven:
    """How the speedup of on-demand over the best without it moves with one thing at a time: network, devices, model,
    minibatch, lengths, fixed cost. `words`: the other fields of a question, `devices=8`, and of its recipe."""
    return changed(read(asked(BREAK_EVEN.words({"trace": trace, "model": model} | words))))


break_even.__signature__ = BREAK_EVEN.signature(break_even)  # type: ignore[attr-defined]


def changed(question: Question, *, advance: Callable[[], None] = lambda: None) -> BreakEven:
    """Of a question whose lengths are read. `advance` is called once for each curve that is done."""
    few = replace(question, minibatches=MINIBATCHES)
    setting = setting_of(few)
    made = tuple(curves(few, advance=advance))
    ways_out = tuple(remedies(setting)) if misfits(setting) else ()
    weighed = () if ways_out else tuple(regrets(setting))
    return BreakEven(setting, few.max_tokens is not None, made, weighed, ways_out, trusted(setting))
