"""What an audit says: a verdict in a few lines, and the lines to change."""

from collections.abc import Iterator

from odcsim.answer import Answer, AnswerTable
from odcsim.catalog.estimates.memory import IN_WORDS
from odcsim.decide.audit import Audit
from odcsim.decide.normal import Normality
from odcsim.decide.priced_step import PricedStep
from odcsim.decide.remedies import lost
from odcsim.neighbours import edit
from odcsim.neighbours.neighbour import IN_PADDED
from odcsim.results import capacity
from odcsim.say import lever_words
from odcsim.say.lever_words import TRAINS
from odcsim.support.numbers import counted, from_to, ratio, unit
from odcsim.trace import DPO, GRPO, SFT

NAME = "Lines to change"
ALIKE = 0.02  # of a step's tokens
KINDS = {SFT: "supervised", DPO: "preferences (DPO)", GRPO: "reinforcement learning"}
PADDED = 1.02  # times the tokens: less is not worth a word
FEW = 6  # names that are listed
DIAGNOSE = "profile a step ('odcsim diagnose')"
UNEXPLAINED = f"nothing known here explains it: time the loader, saving and evaluation apart, or {DIAGNOSE}"


def answer(audit: Audit) -> Answer:
    first, *rest = verdict(audit)
    return Answer(
        "Audit", f"{audit.config.trainer.name}, {KINDS[audit.config.kind]}", first, "\n".join(rest), tables(audit)
    )


def verdict(audit: Audit) -> list[str]:
    """At most eight lines, before anything runs."""
    lines = [headline(audit)]
    if audit.step is not None:
        lines += [memory(audit.step), *waste(audit.step)]
        lines += room(audit)
        why = lever_words.why(audit.step.usual, audit.step.setting.cost.workers)
        lines += [why] if why else []
    if audit.normal is not None:
        lines.append(normality(audit.normal))
    if audit.notes:
        lines.append(f"Settings: {'; '.join(audit.notes)}.")
    if audit.unknown:
        more = f" and {len(audit.unknown) - FEW} more" if len(audit.unknown) > FEW else ""
        lines.append(f"Not known, and without effect here: {', '.join(audit.unknown[:FEW])}{more}.")
    return lines


def headline(audit: Audit) -> str:
    step = audit.step
    if step is None:
        return f"It would end at once: {audit.ends}{f'; {audit.fix}' if audit.fix else ''}."
    row, model = step.row, step.setting.cost.model.name
    gpus = f"{row.devices:,} x {step.setting.cost.profile.gpu}"
    what = f"{model}, {KINDS[row.kind]}, in {audit.config.trainer.name} on {gpus}"
    if not audit.runs:
        of = f"samples from {step.over_sample:,} tokens" if step.over_sample else f"{step.fits:,} tokens"
        when = "the first step" if step.first_over < 1.5 else f"step {step.first_over:,.0f} on average"
        where = f"a microbatch of {of} has no room" if step.fits else "its states alone need more than there is"
        return f"Out of memory in {when}: {where}. {what}."
    tight = ", and memory is tight" if capacity.tight(step.need) else ""
    return f"{time(step)} a step ({interval(step)}), {step.usual.idle:.0%} idle{tight}: {what}."


def time(step: PricedStep) -> str:
    return unit(step.seconds)(step.seconds)


def interval(step: PricedStep) -> str:
    text = unit(step.seconds)
    return from_to(step.low, step.high, lambda seconds, _: text(seconds))


def memory(step: PricedStep) -> str:
    most = IN_WORDS.get(step.usual.largest_term, "")
    where = f"a microbatch of {step.fullest:,} tokens"
    return f"Memory at the fullest, {where}: {capacity.text(step.need)}{f', most of it {most}' if most else ''}."


def room(audit: Audit) -> list[str]:
    """How to make some, where memory lacks: how to start it, or on how many GPUs."""
    lines = []
    if (started := audit.started) is not None:
        command = audit.config.trainer.command(started.row).split(" -m ")[0]
        lines.append(
            f"Started with shards it needs {capacity.text(started.need)}, and lines below are on top of that: {command}"
        )
    if not audit.runs and not audit.found:
        more = f": {audit.fits_on:,} GPUs would hold it, with shards" if audit.fits_on else ""
        lines.append(f"No line that was tried makes enough room{more}.")
    return lines


def waste(step: PricedStep) -> Iterator[str]:
    """What of a step is no training, and how ranks meet in it."""
    text, (least, most) = unit(step.seconds), step.counts
    parts = [f"training {text(step.training)}", f"passes without backward {text(step.passes)}",
             f"generation {text(step.generation)}"]  # fmt: skip
    if step.row.kind == GRPO:
        yield f"A step of {step.tokens:,.0f} tokens: {', '.join(parts)}."
    elif step.passes:
        yield f"A step of {step.tokens:,.0f} tokens: {', '.join(parts[:2])}."
    count = counted(most, "microbatch") if least == most else f"{least:,} to {most:,} microbatches"
    padding = f"padding makes {step.padding:.1f} times the tokens" if step.padding > PADDED else "hardly any padding"
    every = "as many on all, so that none waits for ever"
    if step.row.balancer == IN_PADDED or step.padding > PADDED:
        yield f"{count} of each rank and step, {every}; {padding}."
    else:
        yield f"{count} of each rank and step, {every}."


def normality(normal: Normality) -> str:
    """Expected beside measured, and what would explain the factor."""
    text = unit(normal.seconds)
    expected = f"{text(normal.low)} to {text(normal.high)} expected, {text(normal.seconds)} measured"
    what = f"{normal.what.capitalize()} of the log: {expected}"
    if normal.tokens is not None and not 0.5 < normal.tokens / normal.expected_tokens < 2:
        held = f"its steps hold {normal.tokens:,.0f} tokens, and {normal.expected_tokens:,.0f} are expected"
        return f"{what}; {held}: is it of this configuration and these lengths?"
    if normal.normal:
        return f"{what}: it is normal."
    if normal.seconds < normal.low and not normal.explained:
        return f"{what}: faster than expected; it does less than the configuration says, or other lengths."
    if not normal.explained:
        over = f"{text(normal.rest)} more than is likely"
        return f"{what}: {over}, and {UNEXPLAINED}."
    one, *others = normal.explained
    also = f"; or {others[0].words} ({text(others[0].seconds)})" if others else ""
    return f"{what}; it fits if {one.words} ({text(one.seconds)}){also}."


def tables(audit: Audit) -> list[AnswerTable]:
    """A row for each change, on top of those before it, and beneath it the lines as they would stand there; then what
    would be another training."""
    if audit.step is None or not audit.changes:
        return []
    base, rows, details = audit.step, list[list[str]](), list[list[str]]()
    for one, lines in zip((*audit.found, *audit.beside), audit.changes, strict=True):
        other = one in audit.beside
        name = f"({one.kind})" if other else one.kind
        rows.append([name, f"x{ratio(one.times)}", time(one.step), capacity.text(one.step.need)])
        trains = [TRAINS[one.kind].format(lost=lost(audit.step.setting.trace, one.step.row.longest))] if other else []
        details.append([*edit.lines(audit.config, lines), *trains])
    return [
        AnswerTable(["change", "faster", "step", "memory"], rows, NAME, details=details, says=together(audit, base))
    ]


def together(audit: Audit, base: PricedStep) -> str:
    """What all changes come to that leave training as it is."""
    if not audit.found:
        return "In brackets: another training."
    last = audit.found[-1].step
    each = last.tokens / base.tokens
    steps = "" if abs(each - 1) < ALIKE else f", in steps of {each:.2f} times the tokens"
    words = f"All together: {ratio(base.per_token / last.per_token)} times as fast by the token, {time(last)} a step"
    rest = " In brackets: on top of them, and another training." if audit.beside else ""
    return f"{words} ({interval(last)}){steps}.{rest}"
