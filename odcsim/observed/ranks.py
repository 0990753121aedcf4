"""One file becomes one rank: its steps in pieces, its calls and its microbatches, on its own clock."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.events import ABOUT, MICRO
from odcsim.observed.kernels import BASE, HOST_NAME, RankEvents, read_events
from odcsim.observed.rank_work import CalledOn, WorkDone, on_gpu, on_host
from odcsim.observed.run import NO, Doing, RanMicrobatch
from odcsim.observed.spans import Spans, clipped, united, within
from odcsim.observed.windows import Window, forwards_alone, microbatches, steps
from odcsim.timeline import Floats, Ints

NAMED = re.compile(r"rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
NUMBER = re.compile(r"(?<![^_.-])(\d{1,6})(?=[._-])")  # that stands alone in a name
GRADIENTS = ("reduce-scatter", "all-reduce")
MOST = 2000  # signatures of equal work that a rank tells of
LEAST = 1000  # of all seconds, so many parts, for a signature to be told
MOVES = re.compile(r"::_?(foreach_)?(copy|clone|chunk_cat|cat|fill|zero|split|all_gather_copy)")
SIZED = re.compile(r"\[\d")
GRID = re.compile(r" \[(\d{1,12}(?:, \d{1,12}){0,2})\] \S.*$")
STEADY = 1.1  # times as long: as far apart may those in the middle of a kernel's calls be ...
UNEVEN = 1.3  # ... while a rank's microbatches are further apart than this
SEVERAL = 3  # calls, below which nobody knows whether they are steady
EIGHTHS = (12.5, 87.5)


@dataclass(frozen=True, slots=True, eq=False)
class CutStep:
    """As in Track, on the rank's own clock; meetings are the rank's own calls."""

    kinds: Ints
    edges: Floats
    calls: Ints
    microbatches: Ints


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
        if sorted(values := [int(number) for number in every]) == list(range(len(paths))):
            return list(values)
    return [None] * len(paths)


def read_rank(path: str, numbered: int | None = 0) -> OwnTrace:
    """`numbered`: which rank it is, where neither the trace nor the word in its name says it."""
    events = read_events(path)
    gpu = len(events.kernels) + len(events.collectives) > 0
    about = events.about.get(ABOUT)
    nccl = bool(events.spoken) or (type(about) is dict and about.get("backend") == "nccl")
    if not gpu and nccl:
        problem = "holds collectives of NCCL and nothing that a GPU did"
        raise InputError(problem, where=path, fix="profile with ProfilerActivity.CUDA, too")
    did = on_gpu(events) if gpu else on_host(events)
    windows = steps(events, did)
    if not windows:
        fix = "profile with ProfilerActivity.CPU and CUDA"
        raise InputError("holds no work of a GPU or a processor", where=path, fix=fix)
    every = tuple(_step(events, did, window) for window in windows)
    inside = np.array([w.device[0] for w in windows]), np.array([w.device[1] for w in windows])
    computed = np.array([m.seconds for step in every for m in step.microbatches])
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
        steps=every,
        alike=alike(events, did, inside, computed),
        updates=_updates(events, did),
        units=len(events.units),
        host=len(events.operators) > 0,
        collects=events.stacks or len(events.collecting) > 0,
    )


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
    hosts = np.array([m.begin for m in marks]), np.array([m.end for m in marks])
    owners = within(np.array([c.launched for c in did.calls]), hosts)
    begin, end, numbers = _on_device(did, hosts, owners)
    goings = [
        (Doing.COMPUTE, united(did.begin, did.end)), (Doing.TRANSFER, did.moves), (Doing.STAGE, did.stages),
        (Doing.LOADER, did.loading), (Doing.COLLECTOR, did.collecting),
    ]  # fmt: skip
    low, high = window.device
    pieces = cut(low, high, goings, did.meeting, did.met, (begin, end), numbers)
    came, seconds, ran = np.array([c.came for c in did.calls]), np.diff(pieces.edges) * MICRO, list[RanMicrobatch]()
    for i, mark in enumerate(marks):
        mine = pieces.microbatches == i
        computed = float(seconds[mine & (pieces.kinds == Doing.COMPUTE)].sum())
        ran.append(RanMicrobatch(0, i, computed, float(seconds[mine].sum()), (), mark.computed, mark.computed))
    gathers = Counter(
        call.bytes
        for call, owner in zip(did.calls, owners, strict=True)
        if owner == 0 and call.kind == "all-gather" and call.launched < marks[0].turned
    )
    return OwnStep(
        window.number,
        pieces,
        np.flatnonzero((came >= low) & (came < high)),
        tuple(ran),
        samples=max((m.samples for m in marks), default=0),
        deferred=_deferred(did.calls, owners, len(marks)),
        gathers=max(gathers.values(), default=0),
        alone=forwards_alone(events, did, window),
    )


def cut(
    low: float,
    high: float,
    goings: Sequence[tuple[Doing, Spans]],
    meeting: Spans,
    met: Ints,
    microbatches: Spans,
    numbers: Ints,
) -> CutStep:
    """A step cut into pieces without a hole. Where several go on at once, the first of Doing counts. `met`: the call of
    each span of `meeting`; `numbers`: the microbatch of each of `microbatches`."""
    parts = [(kind, clipped(spans, low, high)) for kind, spans in goings]
    here = clipped(meeting, low, high)
    sides = [side for _, spans in (*parts, (0, here), (0, clipped(microbatches, low, high))) for side in spans]
    edges = np.unique(np.concatenate(([low, high], *sides)))
    middles = (edges[:-1] + edges[1:]) / 2
    kinds = np.full(len(middles), int(Doing.HOST), np.int64)
    place = within(middles, meeting)
    for kind, spans in sorted((*parts, (Doing.MEETING, here)), key=lambda part: -part[0]):
        kinds[within(middles, spans) >= 0] = kind
    calls = np.where((kinds == Doing.MEETING) & (place >= 0), met[place] if len(met) else NO, NO)
    working = np.flatnonzero(kinds <= Doing.STAGE)
    first, last = (working[0], working[-1]) if len(working) else (len(kinds), len(kinds))
    places = np.arange(len(kinds))
    kinds[(kinds == Doing.HOST) & ((places < first) | (places > last))] = Doing.EDGE
    owner = within(middles, microbatches)
    owners = np.where(owner >= 0, numbers[owner], NO) if len(numbers) else owner
    fresh = np.append(True, np.any(np.diff((kinds, calls, owners), axis=1) != 0, axis=0))
    return CutStep(kinds[fresh], np.append(edges[:-1][fresh], high), calls[fresh], owners[fresh])


def _on_device(did: WorkDone, hosts: Spans, owners: Ints) -> tuple[Floats, Floats, Ints]:
    """From the first that was launched in a microbatch to the last; one ends where the next begins."""
    whose = np.append(within(did.launched, hosts), owners)
    begin = np.append(did.begin, [c.came for c in did.calls])
    end = np.append(did.end, [c.done for c in did.calls])
    first, last = np.full(len(hosts[0]), np.inf), np.full(len(hosts[0]), -np.inf)
    mine = whose >= 0
    np.minimum.at(first, whose[mine], begin[mine])
    np.maximum.at(last, whose[mine], end[mine])
    numbers = np.flatnonzero(first < last)
    first, last = first[numbers], last[numbers]
    last = np.minimum(last, np.append(first[1:], np.inf))
    kept = first < last
    return first[kept], last[kept], numbers[kept]


def _deferred(calls: Sequence[CalledOn], owners: Ints, count: int) -> bool | None:
    """By reduce-scatters; by all-reduces where there is none."""
    for kind in GRADIENTS:
        left = {int(owner) for call, owner in zip(calls, owners, strict=True) if call.kind == kind and owner >= 0}
        if left:
            return left == {count - 1} if count > 1 else None
    return None


def _updates(events: RankEvents, did: WorkDone) -> tuple[float, ...]:
    """Seconds of optimizer steps: on the device, where it has any."""
    if events.device_updates or not len(events.kernels):
        spans = events.device_updates or events.updates
        return tuple((end - begin) * MICRO for begin, end in spans)
    seconds = []
    for begin, end in events.updates:
        mine = (did.launched >= begin) & (did.launched < end)
        if mine.any():
            seconds.append(float(did.end[mine].max() - did.begin[mine].min()) * MICRO)
    return tuple(seconds)


def alike(events: RankEvents, did: WorkDone, steps: Spans, microbatches: Floats) -> dict[str, tuple[float, float]]:
    """Median seconds and their sum of kernels, or operators, that are known to be as much work each time: they tell how
    fast a device is. `steps`: of the device; `microbatches`: seconds of compute.

    Of an operator its shapes say it. A kernel's grid need not: one that persists has as many blocks as the device has
    processors, whatever it computes. A processor's moves of memory tell of its pages, and of who else moves some.
    """
    inside = within(did.begin, steps) >= 0
    words = list(events.names.known)
    if not len(events.kernels):
        inside[1:] &= did.begin[1:] >= np.maximum.accumulate(did.end)[:-1]
        inside &= ~np.isin(did.names, [number for number, word in enumerate(words) if MOVES.search(word)])
    names, seconds = did.names[inside], (did.end - did.begin)[inside] * MICRO
    every = np.bincount(names, seconds, minlength=len(words))
    chosen = np.argsort(-every, kind="stable")[:MOST]
    order = np.argsort(names, kind="stable")
    names, seconds = names[order], seconds[order]
    greatest: dict[str, int] = {}  # blocks of the greatest grid of each kernel
    for name, blocks in map(_grid, words if len(events.kernels) else ()):
        greatest[name] = max(blocks, greatest.get(name, 0))
    uneven = _apart(microbatches) > UNEVEN
    medians = {}
    for number in chosen[every[chosen] > every.sum() / LEAST]:
        if not SIZED.search(words[number]):
            continue
        mine = seconds[slice(*np.searchsorted(names, (number, number + 1)))]
        if not len(events.kernels) or _tells(words[number], mine, greatest, uneven):
            medians[words[number]] = float(np.median(mine)), float(every[number])
    return medians


def _tells(word: str, calls: Floats, greatest: dict[str, int], uneven: bool) -> bool:
    """A kernel that takes as long each time. It could do so since all that the rank computes is even: then only a
    grid that is smaller than others of its name says how much work it is."""
    name, blocks = _grid(word)
    sized = blocks < greatest[name]
    return _apart(calls) <= STEADY and (sized or (uneven and len(calls) >= SEVERAL))


def _grid(word: str) -> tuple[str, int]:
    """A kernel's name and its blocks."""
    shaped = GRID.search(word)
    if shaped is None:
        return word, 0
    return word[: shaped.start()], math.prod(int(n) for n in shaped[1].split(","))


def _apart(seconds: Floats) -> float:
    """How many times as long as the short ones the long ones take, but for the outermost eighths."""
    if not len(seconds):
        return 1.0
    low, high = np.percentile(seconds, EIGHTHS)
    return float(high / low) if low > 0 else math.inf
