"""How a report begins: what somebody asked, what to run, what it takes, how sure that is; then what on-demand gives."""

from odcsim.decide import answer_words, setting_words
from odcsim.decide.answer import Basis
from odcsim.decide.answer_words import dollars_between, hours_between, spent_dollars, spent_hours
from odcsim.decide.comparison import Comparison
from odcsim.results.summary import Row
from odcsim.show.pages import page
from odcsim.support.numbers import duration, finer, from_to, hours, money, ratio

ASKED = "Would on-demand communication pay?"


def opening(comparison: Comparison, reply: Basis) -> list[str]:
    """Its figures are of the whole training run, where somebody asked for one."""
    return [
        page.heading(question(comparison), 1),
        page.answer(advice(comparison, reply)),
        page.key_figures(_figures(comparison, reply)),
        f"<p>{_badges(comparison)}</p>",
        page.heading(ASKED if reply.balanced is None else "What would you gain with odc_engine?"),
        page.answer([answer_words.verdict(reply)], yes=reply.pays),
        *(page.paragraph(sentence) for sentence in answer_words.sentences(comparison, reply)),
    ]


def question(comparison: Comparison) -> str:
    setting, cluster = comparison.setting, comparison.setting.cost.cluster
    where = f"{cluster.gpus} x {setting.cost.profile.gpu}"
    return f"How to train {setting.cost.model.name} on {where}, with lengths like those of {setting.trace.name}?"


def advice(comparison: Comparison, reply: Basis) -> list[str]:
    """What to run, how long, how much; how sure; and whether it fits."""
    chosen, setting, run = reply.chosen, comparison.setting, comparison.whole_run
    samples = f"{setting.minibatch} {setting.trace.unit}{'s' if setting.minibatch > 1 else ''}"
    size = f"{samples} per device and step, at most {setting.limit:,} tokens in a microbatch"
    size = answer_words.settings(chosen.made, setting.trace.unit) if chosen.made else size
    takes = f"{_takes(chosen)}." if run is None else " ".join(answer_words.whole_run(comparison, reply))
    misfit = answer_words.misfit(comparison, reply)
    if reply.nothing_fits:
        return [answer_words.verdict(reply), *misfit]
    return [f"Run {chosen.name}: {size}. {takes}", *misfit, _sure(comparison, chosen)]


def _takes(row: Row) -> str:
    paid = f", {spent_dollars(row)}" if row.dollars is not None else ""
    return f"{row.minibatches} optimizer steps take {duration(row.makespan_seconds)}, {spent_hours(row)}{paid}"


def _sure(comparison: Comparison, chosen: Row) -> str:
    """What the interval of its seconds and that of its minibatches say."""
    off = from_to(chosen.speedup_low or 0.0, chosen.speedup_high or 0.0, ratio)
    gain, spent = f"the speedup over collective + lb-micro is {off}.", comparison.spent(chosen)
    if spent.certain:
        return f"Uncertainty: the seconds come without an interval; {gain}"
    off = from_to(spent.model_low / spent.makespan_seconds, spent.model_high / spent.makespan_seconds, ratio)
    return f"Uncertainty: the 90 % interval is {off} times these seconds; {gain}"


def _figures(comparison: Comparison, reply: Basis) -> list[tuple[str, str]]:
    chosen, before = (comparison.spent(row) for row in (reply.chosen, reply.reference))
    for_steps = f"for {chosen.minibatches:,} optimizer steps"
    instead = "before" if reply.balanced is None else f"under {reply.reference.name}"
    spent = f"GPU-hours {for_steps}{hours_between(chosen)}, {hours(before.gpu_hours)} {instead}"
    more = finer(chosen.gpu_hours_low, chosen.gpu_hours_high, hours)
    figures = [(duration(chosen.makespan_seconds), for_steps), (hours(chosen.gpu_hours, more), spent)]
    if chosen.dollars is not None and before.dollars is not None:
        more = finer(chosen.dollars_low or 0.0, chosen.dollars_high or 0.0, money)
        dollars = f"{for_steps}{dollars_between(chosen)}, {money(before.dollars)} {instead}"
        figures.append((money(chosen.dollars, more), dollars))
    if reply.balanced is None:
        idle = f"idle, from collective + lb-micro to {chosen.name}"
        figures.append((f"{before.idle:.0%} → {chosen.idle:.0%}", idle))
    else:
        figures.append((f"{chosen.idle:.0%}", f"idle under {chosen.name}"))
    gain = f"as fast as collective + lb-micro, {answer_words.interval(reply.chosen)}"
    figures.append((f"{chosen.speedup:.2f} x", gain))
    if chosen.memory_bytes is not None:
        room = f" of {comparison.memory_limit / 1e9:.0f} GB that a GPU has" if comparison.memory_limit else ""
        figures.append((f"{chosen.memory_bytes / 1e9:.0f} GB", f"of memory per device{room}"))
    return figures


def _badges(comparison: Comparison) -> str:
    shape = [f"lengths: {setting_words.SHAPE}"] if setting_words.SHAPE in comparison.setting.trace.origin else []
    return " ".join(page.badge(text) for text in [f"seconds: {comparison.fidelity}", *shape])
