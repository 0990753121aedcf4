"""What is wrong with a plan, one kind at a time: the worst place of each, and in how many minibatches it is so."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from odcsim.checking.batches import Batch
from odcsim.checking.unpaired import PATCHED, unpaired, way_out
from odcsim.program import MEETING, Sync, sync_named
from odcsim.support.numbers import counted

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """`minibatch` is the worst of `minibatches` that have it."""

    kind: str
    severity: str
    minibatch: int
    minibatches: int
    text: str

    @property
    def line(self) -> str:
        more = f" (and {self.minibatches - 1:,} more)" if self.minibatches > 1 else ""
        return f"{self.severity}: minibatch {self.minibatch}{more}: {self.text}"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a plan is held against."""

    under: str = MEETING  # the sync that is to run it
    max_tokens: int = 0
    samples: int = 0  # of the dataset, where known

    @property
    def sync(self) -> Sync:
        return sync_named(self.under)


Odd = tuple[float, str]  # how bad a minibatch is, and in which words


def check(batches: Sequence[Batch], rules: Rules) -> list[PlanFinding]:
    """Errors first: what hangs or breaks a run. Warnings shift its loss. Notes are figures to know."""
    usual = Counter(len(batch.devices) for batch in batches).most_common(1)[0][0]
    full = max(len(batch.samples) for batch in batches)
    kinds: dict[str, tuple[str, Callable[[int, Batch], Odd | None]]] = {
        "devices": (ERROR, lambda _, b: _devices(b, usual)),
        "counts": (ERROR, lambda _, b: _counts(b, rules)),
        "queue": (ERROR, lambda _, b: _queue(b, rules)),
        "empty device": (ERROR if rules.sync.meets else WARNING, lambda _, b: _empty_device(b)),
        "empty microbatch": (ERROR, lambda _, b: _empty_microbatch(b)),
        "repeated": (ERROR, lambda _, b: _repeated(b)),
        "missing": (ERROR, lambda _, b: _missing(b)),
        "over the limit": (ERROR, lambda _, b: _over(b, rules.max_tokens)),
        "lengths": (WARNING, lambda _, b: _lengths(b)),
        "no loss": (WARNING, lambda _, b: _no_loss(b)),
        "partial": (WARNING, lambda _, b: _partial(b, full)),
        "loss tokens": (NOTE, lambda _, b: _loss(b)),
    }
    found = [_worst(kind, severity, odd, batches) for kind, (severity, odd) in kinds.items()]
    known = (finding for finding in found if finding)
    every = [*known, *_unpaired(batches, rules), *_unseen(batches, rules.samples)]
    return sorted(every, key=lambda finding: (ERROR, WARNING, NOTE).index(finding.severity))


def _worst(
    kind: str, severity: str, odd: Callable[[int, Batch], Odd | None], batches: Sequence[Batch]
) -> PlanFinding | None:
    seen = [
        (badness, -number, text) for number, b in enumerate(batches) if (o := odd(number, b)) for badness, text in [o]
    ]
    if not seen:
        return None
    _, minus, text = max(seen)
    return PlanFinding(kind, severity, -minus, len(seen), text)


def _devices(batch: Batch, usual: int) -> Odd | None:
    count = len(batch.devices)
    return None if count == usual else (abs(count - usual), f"{count} devices where the others have {usual}")


def _counts(batch: Batch, rules: Rules) -> Odd | None:
    counts = [len(device) for device in batch.devices]
    least, most = min(counts, default=0), max(counts, default=0)
    if not rules.sync.meets or least == most or not least:
        return None
    few, many = counts.index(least), counts.index(most)
    text = f"device {many} has {most} microbatches and device {few} {least}: {rules.under} sync waits for ever"
    return most - least, f"{text}; even the counts, or run on-demand"


def _queue(batch: Batch, rules: Rules) -> Odd | None:
    if not batch.queue or rules.sync.queues:
        return None
    return len(batch.queue), f"{len(batch.queue)} microbatches in a shared queue, which {rules.under} sync cannot run"


def _empty_device(batch: Batch) -> Odd | None:
    empty = [number for number, device in enumerate(batch.devices) if not any(device)]
    if not empty or batch.queue:
        return None
    others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
    return len(empty), f"device {empty[0]}{others} without samples"


def _empty_microbatch(batch: Batch) -> Odd | None:
    places = [(d, m) for d, device in enumerate(batch.devices) for m, mb in enumerate(device) if not mb and any(device)]
    if not places:
        return None
    device, microbatch = places[0]
    return len(places), f"microbatch {microbatch} of device {device} is empty: a mean over its tokens is not a number"


def _repeated(batch: Batch) -> Odd | None:
    wrong = {i: n for i, n in Counter(batch.samples).items() if n > 1}
    if not wrong:
        return None
    sample = max(wrong, key=lambda i: wrong[i])
    return len(wrong), f"sample {sample} comes {wrong[sample]} times; {len(wrong):,} samples do so"


def _missing(batch: Batch) -> Odd | None:
    """Of samples that the plan itself lists."""
    if not batch.own:
        return None
    missing = set(range(batch.own)) - set(batch.samples)
    return (len(missing), f"sample {min(missing)} is nobody's; {len(missing):,} samples are") if missing else None


def _over(batch: Batch, limit: int) -> Odd | None:
    if not limit or batch.lengths is None:
        return None
    tokens = {(d, m): batch.tokens(mb) for d, device in enumerate(batch.devices) for m, mb in enumerate(device)}
    device, microbatch = max(tokens, key=lambda place: tokens[place], default=(0, 0))
    most = tokens.get((device, microbatch), 0)
    if most <= limit:
        return None
    over = sum(held > limit for held in tokens.values())
    many = f"{over:,} {'is' if over == 1 else 'are'} over it"
    return most, f"microbatch {microbatch} of device {device} holds {most:,} tokens, over {limit:,}; {many}"


def _lengths(batch: Batch) -> Odd | None:
    """Where the plan was made for other lengths than the data's, which somebody may have cut."""
    if batch.data is None or batch.lengths is None:
        return None
    other = {i: (batch.lengths[i], length) for i, length in batch.data.items() if batch.lengths[i] != length}
    if not other:
        return None
    sample, (planned, found) = next(iter(other.items()))
    text = f"row {batch.row(sample)} has {planned:,} tokens in the plan and {found:,} in the lengths"
    return len(other), f"{text}; {counted(len(other), 'sample')} {'differs' if len(other) == 1 else 'differ'}"


def _no_loss(batch: Batch) -> Odd | None:
    if batch.loss is None:
        return None
    none = [number for number, tokens in enumerate(_loss_of(batch)) if not tokens and any(batch.devices[number])]
    return (len(none), f"device {none[0]} has no loss tokens: a mean over them is not a number") if none else None


def _partial(batch: Batch, full: int) -> Odd | None:
    size = len(batch.samples)
    if not 0 < size < full:
        return None
    each = f"each weighs {full / size:.2f} times as much in its step"
    return full / size, f"{counted(size, 'sample')} where the largest has {full:,}: {each}"


def _loss(batch: Batch) -> Odd | None:
    """How unequal devices are: an average of their means is not the mean over tokens."""
    tokens = _loss_of(batch)
    if not tokens or not all(tokens) or min(tokens) == max(tokens):
        return None
    ratio = max(tokens) / min(tokens)
    what = "tokens" if batch.loss is None else "loss tokens"
    text = f"devices have {min(tokens):,} to {max(tokens):,} {what}, {ratio:.2f} times"
    return ratio, f"{text}: the mean of their mean losses is not the mean over tokens"


def _loss_of(batch: Batch) -> list[int]:
    known = batch.loss if batch.loss is not None else batch.lengths
    if known is None:
        return []
    return [sum(known[i] for microbatch in device for i in microbatch) for device in batch.devices]


def _unseen(batches: Sequence[Batch], samples: int) -> Iterator[PlanFinding]:
    seen = {batch.row(i) for batch in batches for i in batch.samples}
    if samples and len(seen) < samples:
        text = f"{samples - len(seen):,} of {samples:,} samples are in no minibatch"
        yield PlanFinding("unseen", NOTE, len(batches) - 1, 1, text)


def _unpaired(batches: Sequence[Batch], rules: Rules) -> Iterator[PlanFinding]:
    """The first place, since a run comes no further."""
    found = unpaired(batches)
    if not found:
        return
    minibatch, minibatches = found[0].minibatch, len({one.minibatch for one in found})
    text = f"{found[0]}, the first of {len(found):,} such" if len(found) > 1 else str(found[0])
    if rules.sync.meets:
        text = f"{text}: {rules.under} sync cannot pair their transfers; {way_out(batches, found)}"
        yield PlanFinding("unpaired", ERROR, minibatch, minibatches, text)
        yield PlanFinding("patched", NOTE, minibatch, minibatches, PATCHED)
    else:
        yield PlanFinding("unpaired", NOTE, minibatch, minibatches, f"{text}: {rules.under} sync has nothing to pair")
