"""What curves of on-demand's lead come to, in a sentence each."""

from collections.abc import Sequence

from odcsim.decide import setting_words
from odcsim.decide.answer import NOTABLE
from odcsim.decide.break_even import Curve, here
from odcsim.decide.setting import Setting
from odcsim.decide.weights import Regret
from odcsim.support.numbers import counted


def question(setting: Setting, *, limited: bool) -> str:
    """Not `limited`: the token limit is looked for at each spot."""
    cost, size = setting.cost, counted(setting.minibatch, "sample")
    return (
        f"Speedup of on-demand over the best without it: {cost.model.name}{cost.recipe.told} on "
        f"{cost.cluster.gpus} x {cost.profile.gpu}, {setting.trace.name}, {size} per device and step.\n"
        f"One thing is changed at a time; a speedup of {NOTABLE:.2f} or more pays.\n"
        f"{setting_words.fixed(setting, limited=limited)}{_anew(setting)}"
    )


def _anew(setting: Setting) -> str:
    """What is held only where nothing is changed."""
    return " Where something is changed, sharding is by the same rule." if setting.sharded_by else ""


def answer(curves: Sequence[Curve]) -> str:
    """Whether on-demand pays here, and what that hangs on."""
    if (lead := here(curves)) is None:
        return "On-demand and the best without it cannot be compared here: one of them cannot run what you ask about."
    digits = 2 if (round(lead, 2) >= NOTABLE) == (lead >= NOTABLE) else 3
    pays = "pays" if lead >= NOTABLE else "does not pay"
    told = f"On-demand {pays} here: it is {lead:.{digits}f} times as fast as the best without it."
    moved = [f"{c.name} (it pays {_where(c)}; here it is {c.here})" for c in curves if c.crossings]
    rest = [c.name for c in curves if c.leads and not c.crossings]
    if not moved:
        return f"{told} Nothing else that was tried ({', '.join(rest)}) changes that."
    still = f"; not on {_listed(rest, 'or')}" if rest else ""
    return f"{told} This depends on {_listed(moved, 'and')}{still}."


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def sentence(curve: Curve) -> str:
    if not curve.leads:
        return "None of these fits in memory, or none can be drawn."
    low, high = min(curve.leads), max(curve.leads)
    if not curve.crossings:
        most = f"{high:.2f}" if round(high, 2) < NOTABLE else f"{high:.3f}"
        return (
            f"It pays at all of these ({low:.2f} and more)." if low >= NOTABLE else f"It pays at none (at most {most})."
        )
    return f"It pays {_where(curve)}; here it is {curve.here}."


def _where(curve: Curve) -> str:
    """Between which of the values, where the lead passes what pays."""
    known = [s for s in curve.spots if s.lead is not None]
    pays = (known[0].lead or 0) >= NOTABLE
    words = []
    for at in curve.crossings:
        words.append(f"{'up to' if pays else 'from'} {'' if curve.whole else 'about '}{_value(curve, at)}")
        pays = not pays
    return " and ".join(words)


def _value(curve: Curve, at: float) -> str:
    if curve.unit == "ms":
        return f"{1000 * at:.0f} ms"
    return f"{at:.0f} {curve.unit}".strip() if at >= 10 else f"{at:.2g} {curve.unit}".strip()


def misfit(ways_out: Sequence[str]) -> str:
    return f"Out of memory: what you ask about does not fit. Options that fit: {'; '.join(ways_out)}."


def regret_lines(regrets: Sequence[Regret]) -> list[str]:
    """What balancing by other weights than the true ones costs."""
    return [
        f"Balanced by {r.name}: "
        + ", ".join(f"{side} takes {100 * (times - 1):+.1f} %" for side, times in r.times.items())
        + "."
        for r in regrets
    ]
