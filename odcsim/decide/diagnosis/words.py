"""What was found in a run, in sentences: how long a step takes, what of it is idle and why, what would change it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from odcsim.decide.answer import NOTABLE
from odcsim.decide.diagnosis.found import Breakdown, Change, Changes, LateMicrobatch, StepPart
from odcsim.observed.run import SeenRun
from odcsim.support.numbers import counted, from_to, ratio, unit

WORK = ("compute", "padding", "transfer")
LITTLE = 0.03  # of a step: what would not be missed
NAMED = 0.01  # of a step: a cause that the first sentence names
CAUSES = 3  # that it names
WORST = 4  # microbatches by which a rank is named
SLOW = 1.02  # times as long as others for equal work: a slow device

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


def answer(run: SeenRun, found: Breakdown, changes: Changes) -> str:
    """The first thing to know."""
    best = fastest(changes)
    if best is None and lost(found) < LITTLE:
        whole = len(run.seen) == run.ranks
        took = f"{_step(run, found)}, of which {_worked(found)}."
        return f"Nothing to gain: {took[0].lower()}{took[1:]}" if whole else f"{took} {_unseen(run)}"
    told = [f"{_step(run, found)}{_idle(run, found)}.", *_beside(found)]
    if best is not None:
        told.append(f"It could be {best.gain:.2f} times as fast: {best.way}.")
    elif changes.rests:
        told.append("No other assignment of samples is certain to be faster.")
    return " ".join(told)


def sentences(run: SeenRun, found: Breakdown, changes: Changes) -> list[str]:
    """All that is said: the answer, what it is of, ways, what to look at, and what cannot be told."""
    ways = [f"{way(one)}." for one in changes.ways]
    return [
        answer(run, found, changes),
        seen(run),
        *ways,
        *remedies(run, found),
        *rests(changes),
        *untold(run, found, changes),
    ]


def fastest(changes: Changes) -> Change | None:
    """The way to name: the one of least effort that is about as fast as any that is worth it."""
    worth = [one for one in changes.ways if one.gain >= NOTABLE and one.low > 1 and one.fits is not False]
    most = max((one.gain for one in worth), default=0.0)
    return next((one for one in worth if one.gain * NOTABLE >= most), None)


def lost(found: Breakdown) -> float:
    """Share of a step that is neither work nor bytes, padding among it."""
    return sum(part.share for part in found.parts if part.name not in WORK or part.name == "padding")


def idle(found: Breakdown) -> float:
    return sum(part.share for part in found.parts if part.name not in WORK)


def seen(run: SeenRun) -> str:
    """What was read."""
    if not run.seen:
        return f"Read: {run.source}."
    steps = counted(len(run.steps), "step")
    ranks = "" if len(run.seen) == run.ranks else f" ({len(run.seen)} of the run's {run.ranks} ranks)"
    known = {"lengths": "lengths", "tokens": "tokens", "seconds": "seconds alone"}[run.rests]
    return f"Read: {run.source}{ranks}, {steps}; microbatches are known by {known}."


def way(change: Change) -> str:
    """One way in a sentence."""
    paid = f", {dollars(change.dollars_a_day)} a day saved" if change.dollars_a_day is not None else ""
    fits = "" if change.fits is not False else "; it does not fit memory"
    step = unit(change.seconds)(change.seconds)
    interval = f" ({from_to(change.low, change.high, ratio)})" if change.low < change.high else ""
    figures = f"{change.gain:.2f} times as fast{interval}, {step} a step"
    setting = f". Set {' '.join(change.setting.split())}" if change.setting else ""
    resting = f". It rests on: {change.rests}" if change.rests else ""
    return f"{_begun(change.effort)}: {change.way}: {figures}{paid}{fits}{setting}{resting}"


def remedies(run: SeenRun, found: Breakdown) -> list[str]:
    """What to look at for causes that no other way to run the samples takes away, the largest first."""
    known = [part for part in found.parts if part.name in REMEDIES and part.share >= LEAST.get(part.name, LITTLE)]
    return [f"{_begun(_cause(run, found, part))}: {REMEDIES[part.name]}." for part in _largest(known)]


def rests(changes: Changes) -> list[str]:
    times = changes.replayed
    off = f"; the step as it ran, simulated, takes {times:.2f} times as long as measured" if times else ""
    what = "Speedups rest" if changes.ways else "That no other way is certain to be faster rests"
    return [f"{what} on {changes.rests}{off}."] if changes.rests else []


def untold(run: SeenRun, found: Breakdown, changes: Changes) -> list[str]:
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
    total = idle(found)
    if total < NAMED:
        return f", of which {_worked(found)}"
    named = [part for part in every if part.share >= NAMED][:CAUSES]
    causes = [f"{percent(part.share)} {_because(run, found, part)}" for part in named]
    rest = total - sum(part.share for part in named)
    causes += [f"{percent(rest)} else"] if named and rest >= 0.005 else []
    if len(causes) == 1:
        return f", of which {percent(total)} is idle {_because(run, found, named[0])}"
    return f", of which {percent(total)} is idle" + (f": {', '.join(causes)}" if causes else "")


def _largest(parts: "Iterator[StepPart] | Sequence[StepPart]") -> list[StepPart]:
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
