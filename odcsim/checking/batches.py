"""Minibatches as their planner wrote them: index lists, batches of lengths or schedules, as values or in a file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.neighbours.trl import PACKED
from odcsim.reading.records import TABLES, RecordFile
from odcsim.schedule import FORMAT, Schedule
from odcsim.support import budget
from odcsim.support.inputs import check_file, read_stdin, read_text, reading
from odcsim.support.values import Given
from odcsim.trace import Trace

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


def read(path: str, dealing: Dealing) -> tuple[list[Batch], str]:
    """Minibatches of a file, right or wrong: only what is no plan at all is refused. And the balancer that it names,
    where it names one."""
    where, file = "stdin" if path == "-" else path, Path(path)
    with budget.bounded(path):
        if file.is_dir() or file.suffix.lower() in TABLES:
            if file.exists() and not file.is_dir():
                check_file(file)
            table = RecordFile(file)
            if PACKED not in table.first():
                raise InputError(f"has no column '{PACKED}'", where=path, fix="give a dataset that TRL packed")
            return of_lengths([row[PACKED] for row in table.rows((PACKED,))], where, dealing), ""
        with reading(path, missing="give a plan", expected="a plan in JSON"):
            text = read_stdin() if path == "-" else read_text(path, encoding="utf-8-sig")
            try:
                content = json.loads(text)
            except ValueError:
                return _of_lines(text, where, dealing)
        balancer = content.get("balancer") if isinstance(content, dict) else ""
        return of_value(content, where, dealing), str(balancer or "")


def _of_lines(text: str, where: str, dealing: Dealing) -> tuple[list[Batch], str]:
    """A value in each line: minibatches, behind the head of a schedule file, or packs of lengths."""
    batches: list[Batch] = []
    packs: list[Sequence[int]] = []
    balancer = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{where}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError("is not valid JSON", where=place, fix=FORM) from None
        if isinstance(value, dict) and value.get("format") == FORMAT:
            balancer = str(value.get("balancer", ""))
        elif isinstance(value, dict) and isinstance(value.get(PACKED), list):
            packs.append(Given(PACKED, value[PACKED], place).wholes(1))
        else:
            batches += of_value(value, place, dealing)
    return of_lengths(packs, where, dealing) if packs else _some(batches, where), balancer


def of_value(value: Any, where: str, dealing: Dealing) -> list[Batch]:
    """A plan as JSON has it: index lists, or an object with `devices`, and beside it what is known of its samples; a
    line of a schedule file is one."""
    if not isinstance(value, dict):
        return [Batch(devices) for devices in _of_lists(value, where, dealing)]
    given = Given("", value, where)
    if PACKED in value:
        rows = given.key(PACKED).values()
        nested = rows if rows and isinstance(rows[0], list) else [rows]
        return of_lengths([Given(PACKED, row, where).wholes(1, MOST) for row in nested], where, dealing)
    if "devices" not in value:
        raise InputError(f"has neither devices nor {PACKED}", where=where, fix=FORM)
    lengths = given.key("lengths").wholes(1, MOST) if value.get("lengths") else ()
    loss = given.key("loss").wholes(0, MOST) if value.get("loss") else ()
    by_row = lengths and isinstance(value.get("samples"), list)
    samples = given.key("samples").wholes(0, MOST) if by_row else ()
    queue = [entry.wholes(0, MOST) for entry in given.key("queue", []).items()]
    devices = value["devices"]
    if queue and isinstance(devices, list) and devices and all(device == [] for device in devices):
        minibatches: list[Lists] = [devices]  # all of which may begin with nothing of their own
    else:
        minibatches = _of_lists(devices, where, Dealing())
    batches = [Batch(d, lengths or None, loss or None, queue, len(lengths), samples) for d in minibatches]
    _check_numbers(batches, where)
    return batches


def of_schedules(schedules: Sequence[Schedule], where: str) -> list[Batch]:
    """Samples are numbered within each, and `samples` has the rows that they are."""
    batches = [Batch(s.devices, s.lengths, s.loss or None, s.queue, len(s.lengths), s.samples) for s in schedules]
    for batch in batches:
        _check_numbers([batch], where)
    return _some(batches, where)


def of_lengths(rows: Sequence[Sequence[int]], where: str, dealing: Dealing) -> list[Batch]:
    """Packs of lengths in a row, as TRL's `seq_lengths` has them: each is a microbatch."""
    if not dealing.devices:
        raise InputError("batches of lengths, and nobody said for how many", where=where, fix="give --devices")
    lengths = [length for row in rows for length in row]
    numbers = iter(range(len(lengths)))
    packs = [[next(numbers) for _ in row] for row in rows]
    return _some([Batch(devices, lengths) for devices in _in_turn(packs, dealing)], where)


def _some(batches: list[Batch], where: str) -> list[Batch]:
    if not any(batch.devices for batch in batches):
        raise InputError("holds no minibatch", where=where, fix=FORM)
    return batches


def _of_lists(value: Any, where: str, dealing: Dealing) -> list[Lists]:
    """Index lists of any known depth, the same everywhere; samples are whole numbers from 0."""
    levels = set(_depths(value, where, 0))
    depths, empty = ({depth for depth, of_sample in levels if of_sample is kind} for kind in (True, False))
    if len(depths) != 1 or not 2 <= max(depths) <= DEEP or max(empty, default=0) > max(depths):
        raise InputError("is no plan: its lists are of different depths, or empty", where=where, fix=FORM)
    [depth] = depths
    if depth == 2 and dealing.devices:
        return _in_turn(value, dealing)
    if depth == 2:  # a list for each device, as of verl's get_seqlen_balanced_partitions
        return [[[device] if device else [] for device in value]]
    return [value] if depth == 3 else value


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


def _in_turn(batches: Sequence[Sequence[int]], dealing: Dealing) -> list[Lists]:
    """Batch j is device j mod N's; what is left at the end makes the last, shorter minibatch."""
    size, count = dealing.devices * dealing.each, dealing.devices
    minibatches = [batches[start : start + size] for start in range(0, len(batches), size)]
    return [[part[device::count] for device in range(count)] for part in minibatches]


def _check_numbers(batches: list[Batch], where: str) -> None:
    """What their object says of samples it says of each."""
    last = max((sample for batch in batches for sample in batch.samples), default=0)
    one = batches[0]
    for name, values in (("lengths", one.lengths), ("loss", one.loss), ("samples", one.rows)):
        if values and last >= len(values):
            raise InputError(f"sample {last} is not among its {name}", where=where, fix="number them from 0")


def with_lengths(
    batches: Sequence[Batch], trace: Trace, where: str, images: NDArray[np.bool_] | None = None
) -> list[Batch]:
    """The same batches, whose samples are rows of a dataset, of which it may be known which have an image. What a plan
    says of its samples itself, it was made for."""
    every = []
    for batch in batches:
        if batch.lengths and not batch.rows:
            fix = "leave out --lengths, or list the samples' rows, too, as 'samples'"
            raise InputError("lists lengths, and not which rows they are of", where=where, fix=fix)
        samples = sorted(set(batch.samples))
        rows = [batch.row(sample) for sample in samples]
        if beyond := [row for row in rows if row >= trace.size]:
            raise InputError(f"sample {beyond[0]} is not among the lengths", where=where, fix="give those of the plan")
        at = trace.rows(np.array(rows, np.int64))
        lengths = dict(zip(samples, trace.lengths[at].tolist(), strict=True))
        loss = None if trace.loss is None else dict(zip(samples, trace.loss[at].tolist(), strict=True))
        has = None if images is None else dict(zip(samples, images[at].tolist(), strict=True))
        one = replace(batch, lengths=batch.lengths or lengths, loss=batch.loss or loss or None, data=lengths)
        every.append(replace(one, images=has))
    return every
