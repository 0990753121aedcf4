"""Which device runs which samples of a minibatch, in which microbatches; and the file that holds many minibatches.

A schedule is one minibatch: the optimizer step is a barrier, so minibatches do not know of each other.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from odcsim.errors import InputError
from odcsim.support import budget
from odcsim.support.inputs import LINES, read_text, reading
from odcsim.support.outputs import replacing
from odcsim.support.values import Given, build, shown
from odcsim.trace import MAX_LENGTH, ranges

Microbatches = tuple[tuple[int, ...], ...]
Assignment = tuple[Microbatches, ...]
Ints = NDArray[np.int64]
FORMAT = "odcsim schedule"
VERSION = 1
ANEW = "write it anew with 'odcsim balance'"


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """What devices run, in arrays: the microbatches of a device beside each other, and their samples. Nested tuples of
    thousands of devices take longer to make than to simulate."""

    counts: Ints  # microbatches of each device
    sizes: Ints  # samples of each microbatch
    samples: Ints

    def __eq__(self, other: object) -> bool:
        """With the same in it."""
        if not isinstance(other, Flat):
            return NotImplemented
        mine, its = ((of.counts, of.sizes, of.samples) for of in (self, other))
        return all(map(np.array_equal, mine, its))

    def __hash__(self) -> int:
        return hash(tuple(of.tobytes() for of in (self.counts, self.sizes, self.samples)))

    def numbered(self, numbers: Ints) -> "Flat":
        """The same with sample i called `numbers[i]`."""
        return Flat(self.counts, self.sizes, numbers[self.samples])

    def opened(self, starts: Ints, end: int) -> "Flat":
        """With bundle i as its samples: from `starts[i]` to where the next one starts, of the last one up to `end`."""
        ends = np.append(starts[1:], end)
        each = np.repeat(np.arange(len(self.sizes)), self.sizes)
        sizes = np.bincount(each, (ends - starts)[self.samples], len(self.sizes)).astype(np.int64)
        return Flat(self.counts, sizes, ranges(starts[self.samples], ends[self.samples]))

    def of_sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """What each microbatch's samples add up to, one after the other."""
        each = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return np.bincount(each, values[self.samples], len(self.sizes)).astype(np.float64, copy=False)

    def ordered(self, order: Ints) -> "Flat":
        """Microbatch after microbatch in this order, as of one device."""
        ends = self.sizes.cumsum()
        places = ranges((ends - self.sizes)[order], ends[order])
        return Flat(np.array([len(order)]), self.sizes[order], self.samples[places])

    def nested(self) -> Assignment:
        """In tuples, as files and users have it."""
        return tuple(_cut(_cut(self.samples.tolist(), self.sizes), self.counts))


def _cut(values: list[Any], sizes: Ints) -> list[tuple[Any, ...]]:
    ends = sizes.cumsum().tolist()  # slices are quicker here than an iterator
    return [tuple(values[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=False)]


def flattened(devices: Sequence[Sequence[Sequence[int]]]) -> Flat:
    """Of microbatches in lists, by device."""
    microbatches = list(chain.from_iterable(devices))
    counts = np.fromiter(map(len, devices), np.int64, len(devices))
    sizes = np.fromiter(map(len, microbatches), np.int64, len(microbatches))
    return Flat(counts, sizes, np.fromiter(chain.from_iterable(microbatches), np.int64, int(sizes.sum())))


NOTHING = flattened(((),))  # a queue without entries: of one device that stands for any


@dataclass(frozen=True, repr=False)
class Schedule:
    """One minibatch: what devices run, and what waits for whoever is free.

    `devices[d][m]` holds positions in `lengths`: what device d runs in its m-th microbatch. `queue` holds microbatches
    that are nobody's yet: a device that is done with its own takes the next one, until none is left. Only where devices
    do not meet inside a minibatch. Both are kept in arrays, which simulations run by.
    """

    lengths: tuple[int, ...]
    flat: Flat  # of the devices
    waiting: Flat = NOTHING  # of the queue: microbatches of one device that stands for any
    samples: tuple[int, ...] = ()  # the samples' ids in the trace, where known
    loss: tuple[int, ...] = ()  # tokens of each sample that carry loss, where known

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        devices: Sequence[Sequence[Sequence[int]]],
        samples: tuple[int, ...] = (),
        loss: tuple[int, ...] = (),
        queue: Sequence[Sequence[int]] = (),
    ) -> "Schedule":
        """Of microbatches in lists."""
        return cls(tuple(lengths), flattened(devices), flattened((queue,)), samples, loss)

    def __repr__(self) -> str:
        return f"Schedule.of({', '.join(f'{name}={value}' for name, value in self.as_json().items())})"

    def dealt(self, flat: Flat, waiting: Flat = NOTHING) -> "Schedule":
        """The same samples, dealt otherwise."""
        other = replace(self, flat=flat, waiting=waiting)
        other.__dict__["sizes"] = self.sizes  # made once for all balancers
        return other

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The lengths as an array, which every simulation of the schedule asks for."""
        return np.array(self.lengths, dtype=np.int64)

    @cached_property
    def devices(self) -> Assignment:
        return self.flat.nested()

    @cached_property
    def queue(self) -> Microbatches:
        return self.waiting.nested()[0]

    def tokens(self, microbatch: Iterable[int]) -> int:
        """Tokens that a device holds in a microbatch."""
        return sum(map(self.lengths.__getitem__, microbatch))

    @property
    def queued(self) -> int:
        """Microbatches in the queue."""
        return len(self.waiting.sizes)

    @cached_property
    def loads(self) -> NDArray[np.float64]:
        """Tokens of each microbatch, whoever runs it."""
        return np.concatenate([flat.of_sums(self.sizes) for flat in (self.flat, self.waiting)])

    @property
    def fullest(self) -> int:
        """Tokens of the fullest microbatch."""
        return int(self.loads.max(initial=0))

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Microbatches of each device, without what it takes from the queue."""
        return tuple(self.flat.counts.tolist())

    @property
    def uneven(self) -> bool:
        """Whether devices differ in microbatch counts, which only a sync without meetings inside can run."""
        counts = self.flat.counts
        return bool(self.queued) or bool(len(counts) and counts.min() != counts.max())

    def as_json(self) -> dict[str, Any]:
        """As files have it: what is empty is left out."""
        entry = {name: getattr(self, name) for name in ("lengths", "devices", "queue", "samples", "loss")}
        return {name: value for name, value in entry.items() if value or name in ("lengths", "devices")}

    def contents(self) -> Iterator[tuple[int, ...]]:
        """The samples of every microbatch, whoever runs it."""
        return chain(*self.devices, self.queue)

    def realised(self, takers: ArrayLike) -> "Schedule":
        """The schedule that a run has come to, without a queue: `takers` has the device that ran each entry, behind
        its own microbatches."""
        ran, own, entries = np.asarray(takers, dtype=np.int64), self.flat, self.waiting
        if len(ran) != self.queued:
            raise ValueError(f"{len(ran)} takers of {self.queued} entries: the one is shorter than the other")
        devices = len(own.counts)
        order = np.concatenate((np.repeat(np.arange(devices), own.counts), ran)).argsort(kind="stable")
        sizes = np.concatenate((own.sizes, entries.sizes))
        every = Flat(own.counts, sizes, np.concatenate((own.samples, entries.samples))).ordered(order)
        return self.dealt(replace(every, counts=own.counts + np.bincount(ran, minlength=devices)))


@dataclass(frozen=True, slots=True)
class Header:
    """What a schedule file says of itself."""

    balancer: str
    model: str
    weights: str  # fidelity and origin of the cost that the samples were weighed by
    max_tokens: int
    devices: int
    seed: int = 0
    trace: str = ""
    in_order: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """Many minibatches with one header. The digest tells two files apart whatever their names."""

    header: Header
    schedules: tuple[Schedule, ...] = field(repr=False)

    def sealed(self) -> "ScheduleFile":
        """With the digest of what it has."""
        header = replace(self.header, digest="")
        sha = hashlib.sha256(json.dumps(asdict(header), sort_keys=True).encode())
        for line in _lines(self.schedules):
            sha.update(line.encode())
        return replace(self, header=replace(header, digest=sha.hexdigest()[:16]))


def write(file: ScheduleFile, path: Path | str) -> ScheduleFile:
    """Write the file whole or not at all; the file that comes back carries its digest."""
    sealed = file.sealed()
    with replacing(Path(path)) as out:
        out.write((json.dumps({"format": FORMAT, "version": VERSION, **asdict(sealed.header)}) + "\n").encode())
        for line in _lines(sealed.schedules):
            out.write((line + "\n").encode())
    return sealed


def _lines(schedules: Iterable[Schedule]) -> Iterator[str]:
    for number, schedule in enumerate(schedules):
        yield json.dumps({"minibatch": number, **schedule.as_json()}, separators=(",", ":"))


def read(path: Path | str) -> ScheduleFile:
    """Read and check a schedule file: every sample once, nothing over the limit, digest as written."""
    with budget.bounded(path):
        with reading(path, missing="write one with 'odcsim balance'", expected="a schedule file"):
            lines = read_text(path, LINES).splitlines()
        where = f"{path}:1"
        given = _object(lines[0] if lines else "", where)
        if given.value.pop("format", None) != FORMAT:
            raise InputError("not a schedule file", where=where, fix="write one with 'odcsim balance'")
        if (version := given.value.pop("version", None)) != VERSION:
            raise InputError(f"version {shown(version)} is not {VERSION}", where=where, fix=ANEW)
        header = build(Header, given)
        schedules = tuple(_schedule(line, header, f"{path}:{i}") for i, line in enumerate(lines[1:], 2))
        if not schedules:
            raise InputError("holds no minibatch", where=str(path), fix=ANEW)
        file = ScheduleFile(header, schedules)
        if file.sealed().header != header:
            problem, fix = f"digest {header.digest} does not fit the content", f"the file was edited; {ANEW}"
            raise InputError(problem, where=str(path), fix=fix)
        return file


def _schedule(line: str, header: Header, where: str) -> Schedule:
    given = _object(line, where)
    lengths, devices = given.key("lengths").wholes(1, MAX_LENGTH), given.key("devices")
    if len(devices.values()) != header.devices:
        devices.refuse(f"expected a list of {header.devices}")
    samples, loss = (given.key(name, []).wholes(0, MAX_LENGTH) for name in ("samples", "loss"))
    queue = _microbatches(given.key("queue", []))
    schedule = Schedule.of(lengths, tuple(map(_microbatches, devices.items())), samples, loss, queue)
    check(schedule, header.max_tokens, where)
    return schedule


def check(schedule: Schedule, max_tokens: int, where: str) -> None:
    """Refuse a schedule that drops or repeats a sample or breaks the token limit."""
    for name in ("samples", "loss"):
        if (values := getattr(schedule, name)) and len(values) != len(schedule.lengths):
            raise InputError(f"{len(values)} {name} for {len(schedule.lengths)} lengths", where=where, fix=ANEW)
    if Counter(chain(*schedule.contents())) != dict.fromkeys(range(len(schedule.lengths)), 1):
        raise InputError("a sample is missing, repeated or out of range", where=where, fix=ANEW)
    places = [(f"device {d} microbatch {m}", mb) for d, of in enumerate(schedule.devices) for m, mb in enumerate(of)]
    for place, microbatch in [*places, *((f"queue entry {e}", mb) for e, mb in enumerate(schedule.queue))]:
        if not microbatch:
            raise InputError(f"{place} is empty", where=where, fix=ANEW)
        if (tokens := schedule.tokens(microbatch)) > max_tokens:
            raise InputError(f"{place} holds {tokens} tokens, over max_tokens {max_tokens}", where=where, fix=ANEW)


def _microbatches(device: Given) -> Microbatches:
    return tuple(microbatch.wholes(0, MAX_LENGTH) for microbatch in device.items())


def _object(line: str, where: str) -> Given:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise InputError("not a JSON object", where=where, fix="expected a schedule file of 'odcsim balance'")
    return Given("", entry, where)
