"""Minibatches as whoever planned them wrote them: index lists, batches of lengths, or a schedule file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from odcsim.errors import InputError
from odcsim.neighbours.trl import PACKED
from odcsim.support.checked import Given

DEEP = 4  # lists in lists: minibatches, devices, microbatches, samples
FORM = "give index lists: [device][microbatch][sample], a list around several minibatches, or batches with --devices"
MOST = 2**31 - 1

Lists = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One minibatch: `devices[d][m]` holds samples by number. `lengths` and `loss` are by sample, where known; so are
    `rows`, those of the dataset, and `data`, their lengths there."""

    devices: Lists
    lengths: Mapping[int, int] | Sequence[int] | None = None
    loss: Mapping[int, int] | Sequence[int] | None = None
    queue: Sequence[Sequence[int]] = ()
    own: int = 0  # samples that it lists itself, where it does
    rows: Sequence[int] = ()  # empty where samples are numbered as the dataset's rows are
    data: Mapping[int, int] | None = None
    images: Mapping[int, bool] | None = None  # which samples have any, where known

    @property
    def samples(self) -> list[int]:
        every = [*(mb for device in self.devices for mb in device), *self.queue]
        return [sample for microbatch in every for sample in microbatch]

    def row(self, sample: int) -> int:
        return self.rows[sample] if self.rows else sample

    def tokens(self, microbatch: Sequence[int]) -> int:
        """What a device holds at once."""
        lengths = self.lengths or ()
        return sum(lengths[i] for i in microbatch)


@dataclass(frozen=True, slots=True)
class Dealing:
    """How batches in a row come to devices: in turn, so many for each device and step."""

    devices: int = 0
    each: int = 1


def of_lists(value: Any, where: str, dealing: Dealing) -> list[Batch]:
    """Index lists of any known depth."""
    depth = _depth(value, where)
    if depth == 2 and dealing.devices:
        return _dealt([list(batch) for batch in value], dealing)
    if dealing.devices and depth == 1:
        raise InputError("is one list of samples", where=where, fix=FORM)
    if depth == 2:  # a list for each device, as of verl's get_seqlen_balanced_partitions
        return [Batch([[list(device)] if device else [] for device in value])]
    minibatches = [value] if depth == 3 else value
    return [Batch(minibatch) for minibatch in minibatches]


def _depth(value: Any, where: str) -> int:
    """How many lists lie in each other, the same everywhere; samples are whole numbers from 0."""
    found = set(_depths(value, where, 0))
    depths, empty = ({depth for depth, of_sample in found if of_sample is kind} for kind in (True, False))
    if len(depths) != 1 or not 2 <= max(depths) <= DEEP or max(empty, default=0) > max(depths):
        raise InputError("is no plan: its lists are of different depths, or empty", where=where, fix=FORM)
    return max(depths)


def _depths(value: Any, where: str, depth: int) -> Iterator[tuple[int, bool]]:
    """How deep each sample lies, and how deep one would in each list that is empty."""
    if depth > DEEP:
        raise InputError(f"is no plan: more than {DEEP} lists lie in each other", where=where, fix=FORM)
    if isinstance(value, list):
        for item in value:
            yield from _depths(item, where, depth + 1)
        if not value:
            yield depth + 1, False
    elif type(value) is int and 0 <= value <= MOST:
        yield depth, True
    else:
        Given("a sample", value, where).whole(0, MOST)


def of_lengths(rows: Sequence[Sequence[int]], where: str, dealing: Dealing) -> list[Batch]:
    """Packs of lengths in a row, as TRL's `seq_lengths` has them: each is a microbatch."""
    if not dealing.devices:
        raise InputError("batches of lengths, and nobody said for how many", where=where, fix="give --devices")
    lengths = [length for row in rows for length in row]
    numbers = iter(range(len(lengths)))
    packs = [[next(numbers) for _ in row] for row in rows]
    return [Batch(batch.devices, lengths) for batch in _dealt(packs, dealing)]


def _dealt(batches: list[list[int]], dealing: Dealing) -> list[Batch]:
    """Batch j is device j mod N's; what is left at the end makes the last, shorter minibatch."""
    size, count = dealing.devices * dealing.each, dealing.devices
    minibatches = [batches[start : start + size] for start in range(0, len(batches), size)]
    return [Batch([part[device::count] for device in range(count)]) for part in minibatches]


def of_object(given: Given, dealing: Dealing) -> list[Batch]:
    """An object with `devices`, and beside it what is known of its samples; a line of a schedule file is one."""
    content = given.mapping()
    if PACKED in content:
        rows = given.key(PACKED).values()
        nested = rows if rows and isinstance(rows[0], list) else [rows]
        return of_lengths([Given(PACKED, row, given.where).wholes(1, MOST) for row in nested], given.where, dealing)
    if "devices" not in content:
        raise InputError(f"has neither devices nor {PACKED}", where=given.where, fix=FORM)
    known = {name: _known(given, name, least) for name, least in (("lengths", 1), ("loss", 0))}
    ids = _known(given, "samples", 0) if _lists(content) else None
    queue = [entry.wholes(0, MOST) for entry in given.key("queue", []).items()]
    own = len(known["lengths"] or ())
    plain = _planned(content["devices"], given.where, queued=bool(queue))
    batches = [Batch(b.devices, known["lengths"], known["loss"], queue, own, ids or ()) for b in plain]
    last = max((sample for batch in batches for sample in batch.samples), default=0)
    short = [name for name, values in (*known.items(), ("samples", ids)) if values and last >= len(values)]
    if short:
        raise InputError(f"sample {last} is not among its {short[0]}", where=given.where, fix="number them from 0")
    return batches


def _planned(devices: Any, where: str, *, queued: bool) -> list[Batch]:
    """Where devices share a queue, all of them may begin with nothing of their own."""
    bare = queued and isinstance(devices, list) and bool(devices) and all(device == [] for device in devices)
    return [Batch(devices)] if bare else of_lists(devices, where, Dealing())


def _lists(content: Mapping[str, Any]) -> bool:
    """Whether it says by `samples` which rows its lengths are of, as schedule files do."""
    return bool(content.get("lengths")) and isinstance(content.get("samples"), list)


def _known(given: Given, name: str, least: int) -> tuple[int, ...] | None:
    return given.key(name).wholes(least, MOST) if given.mapping().get(name) else None


def with_lengths(batches: Sequence[Batch], length: Callable[[int], tuple[int, int | None]], where: str) -> list[Batch]:
    """The same batches, whose samples are rows of a dataset. What a plan says of them itself, it was made for."""
    return [_with_lengths(batch, length, where) for batch in batches]


def _with_lengths(batch: Batch, length: Callable[[int], tuple[int, int | None]], where: str) -> Batch:
    if batch.lengths and not batch.rows:
        fix = "leave out --lengths, or list the samples' rows, too, as 'samples'"
        raise InputError("lists lengths, and not which rows they are of", where=where, fix=fix)
    try:
        known = {sample: length(batch.row(sample)) for sample in sorted(set(batch.samples))}
    except IndexError as error:
        raise InputError(
            f"sample {error.args[0]} is not among the lengths", where=where, fix="give those of the plan"
        ) from None
    lengths = {i: length for i, (length, _) in known.items()}
    loss = {i: loss for i, (_, loss) in known.items() if loss is not None}
    return replace(batch, lengths=batch.lengths or lengths, loss=batch.loss or loss or None, data=lengths)


def with_images(batches: Sequence[Batch], has: Callable[[int], bool]) -> list[Batch]:
    """The same batches, of whose samples it is known which have an image; `has` is asked for rows of the dataset."""
    return [replace(batch, images={i: has(batch.row(i)) for i in set(batch.samples)}) for batch in batches]
