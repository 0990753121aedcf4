"""What curves of on-demand's lead come to, in sentences and tables."""

from collections.abc import Sequence

from odcsim.answer import Answer, AnswerTable
from odcsim.decide.break_even import BreakEven, Curve
from odcsim.decide.decision import NOTABLE
from odcsim.say import setting_words
from odcsim.say.rl_words import size as step_words
from odcsim.support.numbers import counted


def question(result: BreakEven) -> str:
    """Where nobody gave a limit, each spot has its own."""
    setting, cost = result.setting, result.setting.cost
    size, whole = f"{counted(setting.minibatch, 'sample')} {setting_words.per_step(setting)}", ""
    if result.rollouts:
        size, whole = step_words(result.rollouts.batch), " of a whole RL step"
    anew = " Where something is changed, sharding is by the same rule." if setting.sharded_by else ""
    return (
        f"Speedup{whole} of on-demand over the best without it: {cost.model.name}{cost.recipe.full_words} on "
        f"{cost.cluster.gpus} x {cost.profile.gpu}, {setting.trace.name}, {size}.\n"
        f"One thing is changed at a time; a speedup of {NOTABLE:.2f} or more pays.\n"
        f"{setting_words.fixed(setting, limited=result.limited)}{anew}"
    )


def answer(result: BreakEven) -> Answer:
    origin = result.setting.trace.origin
    lengths = [setting_words.lengths(origin)] if origin else []
    tables = [table(curve) for curve in result.curves]
    about = setting_words.named(result.setting)
    return Answer("BreakEven", about, headline(result), question(result), tables, [*notes(result), *lengths])


def headline(result: BreakEven) -> str:
    """Whether on-demand pays here, and what that hangs on; and what would fit where this does not."""
    fit = f"Out of memory: what you ask about does not fit. Options that fit: {'; '.join(result.ways_out)}."
    ways_out = f" {fit}" if result.ways_out else ""
    for curve in result.curves:
        if curve.name == "devices" and curve.here == "1":
            return f"{setting_words.ALONE} On-demand on more devices: {sentence(curve)}{ways_out}"
    if (lead := result.lead) is None:
        one = "one of them cannot run what you ask about"
        return f"On-demand and the best without it cannot be compared here: {one}.{ways_out}"
    digits = 2 if (round(lead, 2) >= NOTABLE) == (lead >= NOTABLE) else 3
    pays = "pays" if lead >= NOTABLE else "does not pay"
    words = f"On-demand {pays} here: it is {lead:.{digits}f} times as fast as the best without it."
    moved = [f"{c.name} (it pays {_where(c)}; here it is {c.here})" for c in result.curves if c.crossings]
    rest = [c.name for c in result.curves if c.leads and not c.crossings]
    if not moved:
        return f"{words} Nothing else that was tried ({', '.join(rest)}) changes that.{ways_out}"
    still = f"; not on {_listed(rest, 'or')}" if rest else ""
    return f"{words} This depends on {_listed(moved, 'and')}{still}.{ways_out}"


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def sentence(curve: Curve) -> str:
    if not curve.leads:
        return "None of these fits in memory, or none can be drawn."
    if curve.crossings:
        return f"It pays {_where(curve)}; here it is {curve.here}."
    low, high = min(curve.leads), max(curve.leads)
    if low >= NOTABLE:
        return f"It pays at all of these ({low:.2f} and more)."
    return f"It pays at none (at most {high:.{2 if round(high, 2) < NOTABLE else 3}f})."


def _where(curve: Curve) -> str:
    """Between which of the values, where the lead passes what pays."""
    pays, words = curve.leads[0] >= NOTABLE, []
    for at in curve.crossings:
        value = f"{at:.0f}" if at >= 10 else f"{at:.2g}"
        value = f"{1000 * at:.0f}" if curve.unit == "ms" else value  # of seconds
        words.append(f"{'up to' if pays else 'from'} {'' if curve.whole else 'about '}{value} {curve.unit}".strip())
        pays = not pays
    return " and ".join(words)


def regrets(result: BreakEven) -> list[str]:
    """What balancing by other weights than the true ones costs."""
    lines = []
    for regret in result.regrets:
        more = ", ".join(f"{side} takes {100 * (times - 1):+.1f} %" for side, times in regret.times.items())
        lines.append(f"Balanced by {regret.name}: {more}.")
    return lines


def notes(result: BreakEven) -> list[str]:
    """That, and what was extrapolated."""
    return [*regrets(result), *setting_words.doubts(result.fidelity, result.setting.cost.profile)]


def table(curve: Curve) -> AnswerTable:
    leads = ["-" if s.lead is None else f"{s.lead:.2f}" for s in curve.spots]
    head, row = [curve.title, *(s.label for s in curve.spots)], ["on-demand speedup", *leads]
    return AnswerTable(head, [row], curve.name, says=sentence(curve))
