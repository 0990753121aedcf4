"""What is wrong with a plan, one kind at a time: the worst place of each, and in how many minibatches it is so."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from odcsim.checking.batches import Batch
from odcsim.program import MEETING, Sync, sync_named
from odcsim.support.numbers import counted

ERROR, WARNING, NOTE = "error", "warning", "note"
KINDS = (
    "devices", "counts", "queue", "empty device", "empty microbatch", "repeated", "missing", "over the limit",
    "lengths", "no loss", "partial", "loss tokens",
)  # fmt: skip
PATCHED = (
    "a trainer that runs its vision tower on a dummy image there pairs them, and so does one with the tower in the "
    "root unit, frozen or under set_reduce_scatter_unused_params(True)"
)
Odd = tuple[str, str, float, str]  # a kind, its severity, how bad a minibatch is, and in which words


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


def check(batches: Sequence[Batch], rules: Rules) -> list[PlanFinding]:
    """Errors first: what hangs or breaks a run. Warnings shift its loss. Notes are figures to know."""
    usual = Counter(len(batch.devices) for batch in batches).most_common(1)[0][0]
    full = max(len(batch.samples) for batch in batches)
    places: defaultdict[tuple[str, str], list[tuple[float, int, str]]] = defaultdict(list)
    for number, batch in enumerate(batches):
        for kind, severity, badness, text in (*_breaking(batch, usual, rules), *_shifting(batch, full)):
            places[kind, severity].append((badness, -number, text))
    every = []
    for kind, severity in sorted(places, key=lambda place: KINDS.index(place[0])):
        _, minus, text = max(places[kind, severity])
        every.append(PlanFinding(kind, severity, -minus, len(places[kind, severity]), text))
    every += _pairing(batches, rules)
    rows = {batch.row(i) for batch in batches for i in batch.samples}
    if rules.samples and len(rows) < rules.samples:
        text = f"{rules.samples - len(rows):,} of {rules.samples:,} samples are in no minibatch"
        every.append(PlanFinding("unseen", NOTE, len(batches) - 1, 1, text))
    return sorted(every, key=lambda finding: (ERROR, WARNING, NOTE).index(finding.severity))


def _breaking(batch: Batch, usual: int, rules: Rules) -> Iterator[Odd]:
    """What hangs or breaks a run. `usual`: devices of most minibatches."""
    devices, counts = batch.devices, [len(device) for device in batch.devices]
    if len(devices) != usual:
        text = f"{len(devices)} devices where the others have {usual}"
        yield "devices", ERROR, abs(len(devices) - usual), text
    least, most = min(counts, default=0), max(counts, default=0)
    if rules.sync.meets and 0 < least < most:
        text = f"device {counts.index(most)} has {most} microbatches and device {counts.index(least)} {least}: "
        text += f"{rules.under} sync waits for ever; even the counts, or run on-demand"
        yield "counts", ERROR, most - least, text
    if batch.queue and not rules.sync.queues:
        text = f"{len(batch.queue)} microbatches in a shared queue, which {rules.under} sync cannot run"
        yield "queue", ERROR, len(batch.queue), text
    idle = [number for number, device in enumerate(devices) if not any(device)]
    if idle and not batch.queue:
        text = f"device {idle[0]}{f' and {len(idle) - 1} more' if len(idle) > 1 else ''} without samples"
        yield "empty device", ERROR if rules.sync.meets else WARNING, len(idle), text
    places = {(d, m): mb for d, device in enumerate(devices) for m, mb in enumerate(device)}
    if empty := [(d, m) for (d, m), mb in places.items() if not mb and any(devices[d])]:
        d, m = empty[0]
        text = f"microbatch {m} of device {d} is empty: a mean over its tokens is not a number"
        yield "empty microbatch", ERROR, len(empty), text
    times = Counter(batch.samples)
    if again := {sample: n for sample, n in times.items() if n > 1}:
        most_often = max(again, key=lambda i: again[i])
        text = f"sample {most_often} comes {again[most_often]} times; {len(again):,} samples do so"
        yield "repeated", ERROR, len(again), text
    if missing := set(range(batch.own)) - set(times):  # of samples that the plan itself lists
        yield "missing", ERROR, len(missing), f"sample {min(missing)} is nobody's; {len(missing):,} samples are"
    if rules.max_tokens and batch.lengths is not None:
        tokens = {place: batch.tokens(mb) for place, mb in places.items()}
        over = {place: count for place, count in tokens.items() if count > rules.max_tokens}
        if over:
            d, m = max(over, key=lambda place: over[place])
            many = f"{len(over):,} {'is' if len(over) == 1 else 'are'} over it"
            text = f"microbatch {m} of device {d} holds {over[d, m]:,} tokens, over {rules.max_tokens:,}; {many}"
            yield "over the limit", ERROR, over[d, m], text


def _shifting(batch: Batch, full: int) -> Iterator[Odd]:
    """What shifts the loss, and how unequal devices are. `full`: samples of the largest minibatch."""
    lengths, data = batch.lengths or {}, batch.data or {}
    # Where the plan was made for other lengths than the data's, which somebody may have cut.
    if other := [i for i, length in data.items() if lengths[i] != length]:
        first = other[0]
        text = f"row {batch.row(first)} has {lengths[first]:,} tokens in the plan and {data[first]:,} in the lengths"
        text += f"; {counted(len(other), 'sample')} {'differs' if len(other) == 1 else 'differ'}"
        yield "lengths", WARNING, len(other), text
    counts = batch.lengths if batch.loss is None else batch.loss
    tokens = [] if counts is None else [sum(counts[i] for mb in device for i in mb) for device in batch.devices]
    none = [number for number, sums in enumerate(tokens) if not sums and any(batch.devices[number])]
    if none and batch.loss is not None:
        yield "no loss", WARNING, len(none), f"device {none[0]} has no loss tokens: a mean over them is not a number"
    if 0 < (size := len(batch.samples)) < full:
        text = f"{counted(size, 'sample')} where the largest has {full:,}: "
        yield "partial", WARNING, full / size, f"{text}each weighs {full / size:.2f} times as much in its step"
    if tokens and 0 < min(tokens) < max(tokens):
        ratio, what = max(tokens) / min(tokens), "tokens" if batch.loss is None else "loss tokens"
        text = f"devices have {min(tokens):,} to {max(tokens):,} {what}, {ratio:.2f} times"
        yield "loss tokens", NOTE, ratio, f"{text}: the mean of their mean losses is not the mean over tokens"


@dataclass(frozen=True, slots=True)
class Unpaired:
    """`device` has no image in the `microbatch` in which `other` has one: it skips a vision tower that the other runs.
    Collectives pair by their order, so that from there on each device's transfers meet other ones of its peers."""

    minibatch: int
    microbatch: int
    device: int
    other: int

    def __str__(self) -> str:
        return f"microbatch {self.microbatch} of device {self.device} has no image where device {self.other} has one"


def unpaired(batches: Sequence[Batch]) -> list[Unpaired]:
    """In the order in which they run."""
    return [
        Unpaired(number, microbatch, device, has.index(True))
        for number, batch in enumerate(batches)
        for microbatch, has in enumerate(zip_longest(*_images(batch)))
        if True in has
        for device, one in enumerate(has)
        if one is False
    ]


def _images(batch: Batch) -> list[list[bool]]:
    """Whether there is an image in each device's microbatches."""
    has = batch.images or {}
    return [[any(has.get(i, False) for i in part) for part in device] for device in batch.devices]


def _pairing(batches: Sequence[Batch], rules: Rules) -> list[PlanFinding]:
    """The first place without a pair, since a run comes no further; and what pairs them: another order of what each
    device has, another deal, or nothing but on-demand."""
    pairs = unpaired(batches)
    if not pairs:
        return []
    minibatch, places = pairs[0].minibatch, sorted({one.minibatch for one in pairs})
    text = f"{pairs[0]}, the first of {len(pairs):,} such" if len(pairs) > 1 else str(pairs[0])
    if not rules.sync.meets:
        text = f"{text}: {rules.under} sync has nothing to pair"
        return [PlanFinding("unpaired", NOTE, minibatch, len(places), text)]
    few = next((p for p in places if sum((batches[p].images or {}).values()) < len(batches[p].devices)), None)
    if all(len({sum(device) for device in _images(batches[place])}) == 1 for place in places):
        way = "run on-demand, or let every device begin with its microbatches that have images"
    elif few is not None:
        devices, samples = len(batches[few].devices), sum((batches[few].images or {}).values())
        way = f"run on-demand, since of minibatch {few} too few samples have images ({samples}) for {devices} devices"
    else:
        way = "run on-demand, or deal so that in each microbatch all devices have an image or none has"
    text = f"{text}: {rules.under} sync cannot pair their transfers; {way}"
    return [
        PlanFinding("unpaired", ERROR, minibatch, len(places), text),
        PlanFinding("patched", NOTE, minibatch, len(places), PATCHED),
    ]
