"""A timeline as trace events for ui.perfetto.dev: a process per device, a track per lane, waiting as slices of its own.
Arrows say who waited for whom; one more process has what is counted over all devices.

The format is the Trace Event JSON: slices of one track must nest or be apart, so lanes, which work in order, are tracks
of their own. Times become whole nanoseconds before anything else, so that rounding cannot make neighbours overlap.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.program import COMPUTE
from odcsim.results.metrics import PARTS
from odcsim.results.slices import Slice, View, compute_lane, microbatch_named, transfer_lane, view
from odcsim.support.outputs import replacing
from odcsim.timeline import Timeline

WINDOW = 3  # minibatches written unless asked for more: viewers give up on large files
TRACKS = {COMPUTE: 0, "comm": 1, "gather": 2, "push": 3, "nodes": 4}
IDLE = {*PARTS, "overhead", "optimizer", "publish", "meeting"}  # all but compute
Event = dict[str, Any]


def write(timeline: Timeline, path: Path | str, minibatches: Sequence[int] = ()) -> int:
    """Write the minibatches (default: the first three) one after another; compressed where the name ends in .gz.

    Returns how many events there are. The same timeline gives the same bytes.
    """
    path = Path(path)
    every = list(events(timeline, minibatches or first(timeline)))
    content = {"traceEvents": every, "displayTimeUnit": "ms", "otherData": timeline.about.header()}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    data = gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
    with replacing(path) as file:
        file.write(data)
    return len(every)


def first(timeline: Timeline) -> range:
    """What is written unless somebody asks for other minibatches."""
    return range(min(WINDOW, len(timeline.samples)))


def window(text: str, timeline: Timeline) -> range:
    """`A-B`, both included, or one number."""
    first, dash, last = text.partition("-")
    last, most = last if dash else first, len(timeline.samples)
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < most):
        raise InputError(f"--minibatches is '{text}'", fix=f"give A-B with numbers from 0 to {most - 1}")
    return range(int(first), int(last) + 1)


def events(timeline: Timeline, minibatches: Iterable[int]) -> Iterator[Event]:
    """Names first, then the slices of each minibatch, shifted to begin where the one before it ended."""
    lanes = dict.fromkeys(step.lane for block in timeline.blocks for step in block.program.steps)
    devices = timeline.about.devices
    for device in range(devices):
        yield _named("process_name", device, 0, {"name": f"device {device}"})
        yield _named("process_sort_index", device, 0, {"sort_index": device})
        for lane in lanes:
            yield _named("thread_name", device, TRACKS[lane], {"name": lane})
            yield _named("thread_sort_index", device, TRACKS[lane], {"sort_index": TRACKS[lane]})
    yield _named("process_name", devices, 0, {"name": "all devices"})
    yield _named("process_sort_index", devices, 0, {"sort_index": -1})
    start, numbers = 0, count()
    for number in minibatches:
        block, place = timeline.block_of(number)
        length = nanoseconds(float(block.had[:, place].max()))
        views = [view(block, place, device) for device in range(devices)]
        computing = [compute_lane(of) for of in views]
        moving = [{lane: transfer_lane(of, lane) for lane in of.lanes()} for of in views]
        for device, of in enumerate(views):
            yield _span(device, COMPUTE, f"minibatch {number}", "minibatch", (start, start + length))
            yield from _microbatches(of, computing[device], device, start)
            for lane, slices in moving[device].items():
                yield from _lane(slices, device, lane, start)
        for arrow in arrows(views):
            yield from _ends(arrow, next(numbers), start)
        transfers = [s for of in moving for slices in of.values() for s in slices]
        counted = {"devices idle": [s for slices in computing for s in slices if s.kind in IDLE]}
        counted |= {f"{kind} in flight": [s for s in transfers if s.kind == kind] for kind in ("gather", "push")}
        for name, of_kind in counted.items():
            for at, value in running(of_kind):
                shown = {"ts": (start + at) / 1000, "args": {name: value}}
                yield {"ph": "C", "name": name, "pid": devices, **shown}
        start += length


def _microbatches(ran: View, slices: Sequence[Slice], device: int, start: int) -> Iterator[Event]:
    """Slices of compute, and around those of a microbatch one that is named after it."""
    for microbatch, group in groupby(slices, key=lambda s: s.microbatch):
        members = list(group)
        if microbatch >= 0:
            whole = (start + nanoseconds(members[0].start), start + nanoseconds(members[-1].end))
            kind = "queue entry" if microbatch in ran.entries else "microbatch"
            yield _span(device, COMPUTE, microbatch_named(microbatch, ran.entries), kind, whole)
        yield from _lane(members, device, COMPUTE, start)


def _lane(slices: Iterable[Slice], device: int, lane: str, start: int) -> Iterator[Event]:
    for s in slices:
        times = (start + nanoseconds(s.start), start + nanoseconds(s.end))
        if times[1] > times[0]:
            yield _span(device, lane, s.what, s.kind, times, {"microbatch": s.microbatch})


def running(slices: Iterable[Slice]) -> Iterator[tuple[int, int]]:
    """Times, and how many of the slices run from then on."""
    changes = [(nanoseconds(t), d) for s in slices for t, d in ((s.start, 1), (s.end, -1))]
    now, before = 0, -1
    for at, of in groupby(sorted([(0, 0), *changes]), key=lambda change: change[0]):
        now += sum(change for _, change in of)
        if now != before:
            yield at, now
            before = now


@dataclass(frozen=True, slots=True)
class Moment:
    device: int
    lane: str
    at: int


@dataclass(frozen=True, slots=True)
class Arrow:
    """It leaves the slice that is open at its source and reaches the one at its target."""

    name: str
    source: Moment
    target: Moment


def arrows(views: Sequence[View]) -> Iterator[Arrow]:
    """Who waited for whom in one minibatch, whose views are in the order of devices; times from its start.

    On a device from a gather to the compute that needed it, and from compute to the push of what it made. Between
    devices from what the last of them was computing to those that waited for it where they meet. A one-sided gather has
    no arrow from each device that it reads: it waits for none of them.
    """
    for device, of in enumerate(views):
        ran = set(of.steps)
        for i in of.steps:
            step = of.program.steps[i]
            for j in step.after:
                before = of.program.steps[j]
                if j not in ran or before.lane == step.lane or not (before.kind == "gather" or step.kind == "push"):
                    continue
                lengths = [nanoseconds(of.had[k]) - nanoseconds(of.begun[k]) for k in (i, j)]
                if min(lengths) > 0:  # what takes no time is not drawn
                    source = Moment(device, before.lane, nanoseconds(of.had[j]) - 1)
                    name = "gathered for" if before.kind == "gather" else "made"
                    yield Arrow(name, source, Moment(device, step.lane, nanoseconds(of.begun[i])))
    for i, step in enumerate(views[0].program.steps):
        here = [device for device, of in enumerate(views) if i in of.steps] if step.meets else []
        last = max(here, key=lambda device: float(views[device].asked[i]), default=0)
        for device in here:
            arrived, came = nanoseconds(views[device].asked[i]), nanoseconds(views[device].begun[i])
            if came > arrived:
                yield Arrow("waited for", Moment(last, COMPUTE, came - 1), Moment(device, step.lane, came - 1))


def _ends(arrow: Arrow, number: int, start: int) -> Iterator[Event]:
    for phase, m, binds in (("s", arrow.source, {}), ("f", arrow.target, {"bp": "e"})):
        place = {"pid": m.device, "tid": TRACKS[m.lane], "ts": (start + m.at) / 1000}
        yield {"ph": phase, "name": arrow.name, "cat": "arrow", "id": number, **place, **binds}


def _named(what: str, device: int, track: int, args: Event) -> Event:
    return {"ph": "M", "name": what, "pid": device, "tid": track, "args": args}


def _span(device: int, lane: str, name: str, kind: str, times: tuple[int, int], args: Event | None = None) -> Event:
    shown = {"ts": times[0] / 1000, "dur": (times[1] - times[0]) / 1000}  # microseconds
    return {"ph": "X", "name": name, "cat": kind, "pid": device, "tid": TRACKS[lane], **shown, "args": args or {}}


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
