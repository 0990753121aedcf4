"""One file becomes one rank: its steps in pieces, its calls and its microbatches, on its own clock."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.events import ABOUT, MICRO
from odcsim.observed.done import CalledOn, WorkDone, on_gpu, on_host
from odcsim.observed.equal_work import alike
from odcsim.observed.kernels import BASE, HOST_NAME, RankEvents, read_events
from odcsim.observed.pieces import CutStep, cut
from odcsim.observed.run import Doing, RanMicrobatch
from odcsim.observed.spans import Spans, united, within
from odcsim.observed.windows import MicrobatchWindow, Window, forwards_alone, microbatches, steps
from odcsim.timeline import Floats, Ints

NAMED = re.compile(r"rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
NUMBER = re.compile(r"(?<![^_.-])(\d{1,6})(?=[._-])")  # that stands alone in a name
GRADIENTS = ("reduce-scatter", "all-reduce")


@dataclass(frozen=True, slots=True, eq=False)
class OwnStep:
    """A step of one rank. Microbatches do not know its rank yet."""

    number: int
    pieces: CutStep
    calls: Ints  # that it came to in this step
    microbatches: tuple[RanMicrobatch, ...]
    samples: int  # the most that a microbatch holds; 0: not known
    deferred: bool | None  # whether gradients left with the last microbatch alone; None: not told
    gathers: int  # of one size before the first backward
    alone: int  # forwards without a backward


@dataclass(frozen=True, slots=True, eq=False)
class OwnTrace:
    """What one file tells."""

    where: str
    rank: int | None
    world: int  # 0: not known
    gpu: bool
    base: int  # nanoseconds that its clock begins late
    machine: str  # its host's name; empty: not told
    calls: tuple[CalledOn, ...]
    steps: tuple[OwnStep, ...]
    alike: dict[str, tuple[float, float]]  # median seconds of each signature, and all of its seconds
    updates: tuple[float, ...]
    units: int  # that are gathered by name
    host: bool  # whether it tells what the host did
    collects: bool  # and where Python collected garbage


def numbers(paths: Sequence[str]) -> list[int | None]:
    """What names of several files count from 0; the one of a single file. Else hosts, processes and times are numbers,
    too."""
    if len(paths) == 1:
        return [0]
    for every in zip(*(NUMBER.findall(Path(path).name) for path in paths), strict=False):
        if sorted(found := [int(number) for number in every]) == list(range(len(paths))):
            return list(found)
    return [None] * len(paths)


def read_rank(path: str, numbered: int | None = 0) -> OwnTrace:
    """`numbered`: which rank it is, where neither the trace nor the word in its name says it."""
    events = read_events(path)
    gpu = len(events.kernels) + len(events.collectives) > 0
    if not gpu and _needs_gpu(events):
        problem = "holds collectives of NCCL and nothing that a GPU did"
        raise InputError(problem, where=path, fix="profile with ProfilerActivity.CUDA, too")
    did = on_gpu(events) if gpu else on_host(events)
    windows = steps(events, did)
    if not windows:
        raise InputError(
            "holds no work of a GPU or a processor", where=path, fix="profile with ProfilerActivity.CPU and CUDA"
        )
    found = tuple(_step(events, did, window) for window in windows)
    inside = np.array([w.device[0] for w in windows]), np.array([w.device[1] for w in windows])
    computed = np.array([m.seconds for step in found for m in step.microbatches])
    rank, world = _who(events, numbered)
    base, machine = (events.about.get(key) for key in (BASE, HOST_NAME))
    return OwnTrace(
        where=path,
        rank=rank,
        world=world,
        gpu=gpu,
        base=base if type(base) is int and 0 <= base < 2**62 else 0,
        machine=machine if type(machine) is str else "",
        calls=did.calls,
        steps=found,
        alike=alike(events, did, inside, computed),
        updates=_updates(events, did),
        units=len(events.units),
        host=len(events.operators) > 0,
        collects=events.stacks or len(events.collecting) > 0,
    )


def _needs_gpu(events: RankEvents) -> bool:
    about = events.about.get(ABOUT)
    return bool(events.spoken) or (type(about) is dict and about.get("backend") == "nccl")


def _who(events: RankEvents, numbered: int | None) -> tuple[int | None, int]:
    """As the trace says it; else by the file's name; else by the number of the device."""
    about = events.about.get(ABOUT)
    said = [about.get(key) if type(about) is dict else None for key in ("rank", "world_size")]
    rank, world = (n if type(n) is int and 0 <= n < 2**31 else None for n in said)
    if rank is None and (named := NAMED.search(Path(events.path).name)):
        rank = int(named[1])
    if rank is None:
        rank = min(events.pids, default=None) if numbered is None else numbered
    return rank, world or 0


def _step(events: RankEvents, did: WorkDone, window: Window) -> OwnStep:
    marks = microbatches(events, did, window)
    owners = within(np.array([c.launched for c in did.calls]), _hosts(marks))
    begin, end, numbers = _on_device(did, marks, owners)
    goings = [
        (Doing.COMPUTE, united(did.begin, did.end)), (Doing.TRANSFER, did.moves), (Doing.STAGE, did.stages),
        (Doing.LOADER, did.loading), (Doing.COLLECTOR, did.collecting),
    ]  # fmt: skip
    pieces = cut(*window.device, goings, did.meeting, did.met, (begin, end), numbers)
    came = np.array([c.came for c in did.calls])
    return OwnStep(
        window.number, pieces, np.flatnonzero((came >= window.device[0]) & (came < window.device[1])),
        _ran(pieces, marks), max((m.samples for m in marks), default=0),
        _deferred(did.calls, owners, len(marks)), _gathers(did.calls, owners, marks),
        forwards_alone(events, did, window),
    )  # fmt: skip


def _hosts(marks: Sequence[MicrobatchWindow]) -> Spans:
    return np.array([m.begin for m in marks]), np.array([m.end for m in marks])


def _on_device(did: WorkDone, marks: Sequence[MicrobatchWindow], owners: Ints) -> tuple[Floats, Floats, Ints]:
    """From the first that was launched in a microbatch to the last; one ends where the next begins."""
    whose = np.append(within(did.launched, _hosts(marks)), owners)
    begin = np.append(did.begin, [c.came for c in did.calls])
    end = np.append(did.end, [c.done for c in did.calls])
    first, last = np.full(len(marks), np.inf), np.full(len(marks), -np.inf)
    mine = whose >= 0
    np.minimum.at(first, whose[mine], begin[mine])
    np.maximum.at(last, whose[mine], end[mine])
    numbers = np.flatnonzero(first < last)
    first, last = first[numbers], last[numbers]
    last = np.minimum(last, np.append(first[1:], np.inf))
    kept = first < last
    return first[kept], last[kept], numbers[kept]


def _ran(pieces: CutStep, marks: Sequence[MicrobatchWindow]) -> tuple[RanMicrobatch, ...]:
    seconds = np.diff(pieces.edges) * MICRO
    computing = pieces.kinds == Doing.COMPUTE
    found = []
    for i, mark in enumerate(marks):
        mine = pieces.microbatches == i
        wall, computed = float(seconds[mine].sum()), float(seconds[mine & computing].sum())
        found.append(RanMicrobatch(0, i, computed, wall, (), mark.computed, mark.computed))
    return tuple(found)


def _deferred(calls: Sequence[CalledOn], owners: Ints, count: int) -> bool | None:
    """By reduce-scatters; by all-reduces where there is none."""
    for kind in GRADIENTS:
        left = {int(owner) for call, owner in zip(calls, owners, strict=True) if call.kind == kind and owner >= 0}
        if left:
            return left == {count - 1} if count > 1 else None
    return None


def _gathers(calls: Sequence[CalledOn], owners: Ints, marks: Sequence[MicrobatchWindow]) -> int:
    """All-gathers of the size that most have, before a microbatch's first backward."""
    if not marks:
        return 0
    sizes = Counter(
        call.bytes
        for call, owner in zip(calls, owners, strict=True)
        if owner == 0 and call.kind == "all-gather" and call.launched < marks[0].turned
    )
    return max(sizes.values(), default=0)


def _updates(events: RankEvents, did: WorkDone) -> tuple[float, ...]:
    """Seconds of optimizer steps: on the device, where it has any."""
    if events.device_updates or not len(events.kernels):
        spans = events.device_updates or events.updates
        return tuple((end - begin) * MICRO for begin, end in spans)
    found = []
    for begin, end in events.updates:
        mine = (did.launched >= begin) & (did.launched < end)
        if mine.any():
            found.append(float(did.end[mine].max() - did.begin[mine].min()) * MICRO)
    return tuple(found)
