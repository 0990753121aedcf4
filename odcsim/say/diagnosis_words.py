"""What was found in a run, in sentences: how long a step takes, what of it is idle and why, what would change it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from odcsim.answer import Answer, AnswerTable
from odcsim.decide.diagnosis.outcome import PARTS, SLOW, WORK, Breakdown, Changes, LateMicrobatch, StepPart
from odcsim.decide.diagnosis.result import Diagnosis
from odcsim.observed.run import SeenRun
from odcsim.support.numbers import counted, from_to, ratio, unit

LITTLE = 0.03  # of a step: what would not be missed
NAMED = 0.01  # of a step: a cause that the first sentence names
CAUSES = 3  # that it names
WORST = 4  # microbatches by which a rank is named
PARTS_TABLE, RANKS_TABLE = "Where a step goes", "Stragglers: who waits for whom"
WAYS_TABLE = "What would make it faster"
RANKS, LATE = 8, 5  # that a table shows
SHOWN = 0.0005  # of a step: smaller parts are left out
FELT = 0.01  # of a step: microbatches that caused less are left out

# What to look at where no other way to run the samples helps.
REMEDIES: Mapping[str, str] = {
    "device": "see its clocks, throttling (nvidia-smi -q -d PERFORMANCE), other programs on it, its links",
    "stages": "give the slower stage fewer layers",
    "bubble": "more microbatches in a step fill the pipeline better",
    "loader": "more workers (dataloader_num_workers), prefetched batches, samples prepared beforehand",
    "collector": "gc.freeze() after the first step, then gc.disable() and gc.collect() at the same step on every rank",
    "transfer": "larger microbatches give compute to hide them; across nodes, hybrid sharding and faster links",
    "launch": "larger microbatches, torch.compile or CUDA graphs, and no .item() or print of tensors inside a step",
}  # fmt: skip
LEAST = {"transfer": 0.1}  # of a step, from which on there is something to look at, where that is not LITTLE


def answer(diagnosis: Diagnosis) -> Answer:
    run, found, changes = diagnosis.run, diagnosis.found, diagnosis.changes
    tables = [parts(found), ranks(found), late(found), ways(changes)]
    closing = [*remedies(run, found), *rests(changes), *unknown(run, found, changes)]
    first = headline(run, found, changes)
    return Answer(
        "Diagnosis", run.source, first, seen(run), [one for one in tables if one.rows], closing, figures(diagnosis)
    )


def figures(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """A few numbers to remember, each with what it is."""
    found, best = diagnosis.found, diagnosis.best
    numbers = [(unit(found.seconds)(found.seconds), "a step takes"), (percent(found.idle), "of it is idle")]
    if best is not None:
        numbers.append((f"{best.gain:.2f} x", f"as fast: {best.way}, {from_to(best.low, best.high, ratio)}"))
        if best.dollars_a_day is not None:
            numbers.append((dollars(best.dollars_a_day), "saved a day"))
    return numbers


def parts(found: Breakdown) -> AnswerTable:
    """Every part that there is, and the step that they sum to."""
    text, several = unit(found.seconds), any(len(seconds) > 1 for seconds in found.by_step.values())
    rows = [
        (PARTS[part.name], text(part.seconds), _share(part.share), between(part.low, part.high) if several else "-")
        for part in found.parts
        if part.share >= SHOWN
    ]
    head = ("of a step", "seconds", "share", "90 % interval")
    return AnswerTable(head, [*rows, ("the step", text(found.seconds), "100 %", "")], PARTS_TABLE)


def ranks(found: Breakdown) -> AnswerTable:
    """Those that the others waited for most; none where ranks do not differ."""
    head, text = ("rank", "compute", "waiting", "equal work takes", "waiting caused"), unit(found.seconds)
    some = [] if found.even else found.stragglers[:RANKS]
    rows = [
        (str(one.rank), _share(one.compute), _share(one.waiting), f"{one.pace:.2f} times", text(one.caused))
        for one in some
    ]
    says = f"{more:,} more ranks are not shown." if some and (more := len(found.ranks) - len(some)) else ""
    return AnswerTable(head, rows, RANKS_TABLE, says=says)


def late(found: Breakdown) -> AnswerTable:
    """The microbatches that others waited for most."""
    text, rows = unit(found.seconds), []
    for one in found.late[:LATE]:
        if one.seconds >= FELT * found.seconds:
            which, tokens = "-" if one.microbatch < 0 else str(one.microbatch), f"{one.tokens:,}" if one.tokens else "-"
            why = PARTS[one.why].removeprefix("waiting: ")
            rows.append((str(one.step), str(one.rank), which, tokens, text(one.seconds), why))
    head = ("step", "rank", "microbatch", "tokens", "waiting caused", "why")
    return AnswerTable(head, rows, "Worst microbatches")


def ways(changes: Changes) -> AnswerTable:
    """In order of effort, each with what to set and what that rests on. Dollars that a day saves, where a price is
    known."""
    priced = any(one.dollars_a_day is not None for one in changes.ways)
    text = unit(max((one.seconds for one in changes.ways), default=1.0))
    rows, details = [], []
    for number, one in enumerate(changes.ways, 1):
        fits = "" if one.fits is not False else " (does not fit memory)"
        interval = from_to(one.low, one.high, ratio) if one.low < one.high else "-"
        paid = ["-" if one.dollars_a_day is None else dollars(one.dollars_a_day)] if priced else []
        rows.append([f"{number} {one.effort}: {one.way}{fits}", f"{one.gain:.2f}", interval, text(one.seconds), *paid])
        settings = [f"set {' '.join(one.setting.split())}"] if one.setting else []
        details.append([*settings, *([f"rests on: {one.rests}"] if one.rests else [])])
    head = ["way, least effort first", "gain", "90 % interval", "a step", *(["saved a day"] if priced else [])]
    marks = ["best" if one is changes.best else "" for one in changes.ways]
    return AnswerTable(head, rows, WAYS_TABLE, marks=marks, details=details)


def between(low: float, high: float) -> str:
    return f"{from_to(low, high, lambda share, more: f'{100 * share:.{more}f}')} %"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def headline(run: SeenRun, found: Breakdown, changes: Changes) -> str:
    """The first thing to know."""
    best = changes.best
    if best is None and found.lost < LITTLE:
        whole = len(run.seen) == run.ranks
        took = f"{_step(run, found)}, of which {_worked(found)}."
        return f"Nothing to gain: {took[0].lower()}{took[1:]}" if whole else f"{took} {_unseen(run)}"
    told = [f"{_step(run, found)}{_idle(run, found)}.", *_beside(found)]
    if best is not None:
        told.append(f"It could be {best.gain:.2f} times as fast: {best.way}.")
    elif changes.rests:
        told.append("No other assignment of samples is certain to be faster.")
    return " ".join(told)


def seen(run: SeenRun) -> str:
    """What was read."""
    if not run.seen:
        return f"Read: {run.source}."
    steps = counted(len(run.steps), "step")
    ranks = "" if len(run.seen) == run.ranks else f" ({len(run.seen)} of the run's {run.ranks} ranks)"
    known = {"lengths": "lengths", "tokens": "tokens", "seconds": "seconds alone"}[run.rests]
    return f"Read: {run.source}{ranks}, {steps}; microbatches are known by {known}."


def remedies(run: SeenRun, found: Breakdown) -> list[str]:
    """What to look at for causes that no other way to run the samples takes away, the largest first."""
    known = [part for part in found.parts if part.name in REMEDIES and part.share >= LEAST.get(part.name, LITTLE)]
    return [f"{_begun(_cause(run, found, part))}: {REMEDIES[part.name]}." for part in _largest(known)]


def rests(changes: Changes) -> list[str]:
    times = changes.replayed
    off = f"; the step as it ran, simulated, takes {times:.2f} times as long as measured" if times else ""
    what = "Speedups rest" if changes.ways else "That no other way is certain to be faster rests"
    return [f"{what} on {changes.rests}{off}."] if changes.rests else []


def unknown(run: SeenRun, found: Breakdown, changes: Changes) -> list[str]:
    """What cannot be said, and the way out."""
    return [f"Not known: {line}" for line in dict.fromkeys((*run.lacks, *found.cannot, *changes.cannot))]


def _step(run: SeenRun, found: Breakdown) -> str:
    of = f" of rank {run.seen[0]}" if len(run.seen) == 1 and run.ranks > 1 else ""
    return f"A step{of} takes {unit(found.seconds)(found.seconds)}"


def _unseen(run: SeenRun) -> str:
    who = f"rank {run.seen[0]}" if len(run.seen) == 1 else "these ranks"
    return f"Whether others wait for {who} needs the files of all ranks."


def _worked(found: Breakdown) -> str:
    transfer = found.share("transfer")
    work = sum(part.share for part in found.parts if part.name in WORK) - transfer
    return f"{percent(work)} is compute" + (f" and {percent(transfer)} transfers" if transfer >= NAMED else "")


def _idle(run: SeenRun, found: Breakdown) -> str:
    """How much of it is idle, by the largest causes."""
    every = _largest(part for part in found.parts if part.name not in WORK and part.share > 0)
    total = found.idle
    if total < NAMED:
        return f", of which {_worked(found)}"
    named = [part for part in every if part.share >= NAMED][:CAUSES]
    causes = [f"{percent(part.share)} {_because(run, found, part)}" for part in named]
    rest = total - sum(part.share for part in named)
    causes += [f"{percent(rest)} else"] if named and rest >= 0.005 else []
    if len(causes) == 1:
        return f", of which {percent(total)} is idle {_because(run, found, named[0])}"
    return f", of which {percent(total)} is idle" + (f": {', '.join(causes)}" if causes else "")


def _largest(parts: Iterable[StepPart]) -> list[StepPart]:
    return sorted(parts, key=lambda part: -part.share)


def _because(run: SeenRun, found: Breakdown, part: StepPart) -> str:
    if part.name in ("lengths", "device", "stages", "bubble", "launch"):
        return f"because {_cause(run, found, part)}"
    return {
        "loader": "waiting for the data loader",
        "collector": "in garbage collection",
        "edges": "at the start and the end",
        "untold": "of unknown cause",
    }[part.name]


def _cause(run: SeenRun, found: Breakdown, part: StepPart) -> str:
    """In words that follow 'since', or stand alone."""
    if part.name == "lengths":
        return f"lengths are uneven{_worst(found, part.name)}"
    if part.name == "device":
        return _slow(found)
    if part.name == "stages":
        return _slower_stage(run, found)
    return {
        "bubble": "the pipeline fills and drains (bubble)",
        "transfer": "transfers are not overlapped with compute",
        "launch": "the host launches kernels late",
        "loader": "the data loader is late",
        "collector": "garbage collection runs inside the step",
    }[part.name]


def _worst(found: Breakdown, why: str) -> str:
    """Which rank had most of the microbatches that others waited for longest."""
    late = [one for one in found.late if one.why == why][:WORST]
    if not late:
        return ""
    rank, times = Counter(one.rank for one in late).most_common(1)[0]
    if len(late) == 1:
        return f" ({_named(late[0])} made the others wait longest)"
    if 2 * times > len(late):
        return f" (rank {rank} had {times} of the {len(late)} worst microbatches)"
    return f" (the worst is {_named(late[0])})"


def _named(late: LateMicrobatch) -> str:
    what = f"rank {late.rank}" if late.microbatch < 0 else f"rank {late.rank}'s microbatch {late.microbatch}"
    return f"{what} in step {late.step}{f', {late.tokens:,} tokens' if late.tokens else ''}"


def _slow(found: Breakdown) -> str:
    slow = sorted((rank for rank in found.ranks if rank.pace >= SLOW), key=lambda rank: -rank.pace)
    if not slow:
        return "a device is slow"
    first = slow[0]
    more = f", and {counted(len(slow) - 1, 'other')}" if len(slow) > 1 else ""
    return f"the device of rank {first.rank} is slow ({first.pace:.2f} times as long for equal work{more})"


def _slower_stage(run: SeenRun, found: Breakdown) -> str:
    """That whose ranks compute most of the time."""
    compute: dict[int, list[float]] = {}
    for one in found.ranks:
        if one.rank in run.stages:
            compute.setdefault(run.stages[one.rank], []).append(one.compute)
    shares = {stage: sum(of) / len(of) for stage, of in compute.items()}
    return f"stage {max(shares, key=lambda stage: shares[stage])} takes longer" if shares else "a stage takes longer"


def _beside(found: Breakdown) -> Iterator[str]:
    """What is no waiting, and yet could be less."""
    if (share := found.share("padding")) >= NAMED:
        yield f"{percent(share)} is compute on padding."
    if (share := found.share("transfer")) >= LITTLE:
        yield f"{percent(share)} is transfers that are not overlapped with compute."


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _begun(text: str) -> str:
    """As a sentence begins."""
    return text[:1].upper() + text[1:]


def dollars(amount: float) -> str:
    return f"${amount:,.0f}" if amount >= 10 else f"${amount:.2f}"
