"""A timeline as trace events for ui.perfetto.dev: a process per device, a track per lane, waiting as slices of its own.
Arrows say who waited for whom; one more process has what is counted over all devices.

The format is the Trace Event JSON: slices of one track must nest or be apart, so lanes, which work in order, are tracks
of their own. Times become whole nanoseconds before anything else, so that rounding cannot make neighbours overlap.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby
from pathlib import Path

from odcsim.errors import InputError
from odcsim.program import COMPUTE
from odcsim.results.slices import Slice, View, compute_lane, microbatch_named, transfer_lane, view
from odcsim.show.pages import counts
from odcsim.show.pages.arrows import arrows
from odcsim.show.pages.events import TRACKS, Event, arrow, counter, named, nanoseconds, span
from odcsim.support.files import replacing
from odcsim.timeline import Timeline

WINDOW = 3  # minibatches written unless asked for more: viewers give up on large files


def write(timeline: Timeline, path: Path | str, minibatches: Sequence[int] = ()) -> int:
    """Write the minibatches (default: the first three) one after another; compressed where the name ends in .gz.

    Returns how many events there are. The same timeline gives the same bytes.
    """
    path = Path(path)
    found = list(events(timeline, minibatches or first(timeline)))
    content = {"traceEvents": found, "displayTimeUnit": "ms", "otherData": timeline.about.header()}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    data = gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
    with replacing(path) as file:
        file.write(data)
    return len(found)


def first(timeline: Timeline) -> range:
    """What is written unless somebody asks for other minibatches."""
    return range(min(WINDOW, len(timeline.samples)))


def window(text: str, timeline: Timeline) -> range:
    """`A-B`, both included, or one number."""
    first, dash, last = text.partition("-")
    last, known = last if dash else first, len(timeline.samples)
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < known):
        raise InputError(f"--minibatches is '{text}'", fix=f"give A-B with numbers from 0 to {known - 1}")
    return range(int(first), int(last) + 1)


def events(timeline: Timeline, minibatches: Iterable[int]) -> Iterator[Event]:
    """Names first, then the slices of each minibatch, shifted to begin where the one before it ended."""
    lanes = dict.fromkeys(step.lane for block in timeline.blocks for step in block.program.steps)
    devices = timeline.about.devices
    for device in range(devices):
        yield from _names(device, lanes)
    yield named("process_name", devices, 0, {"name": "all devices"})
    yield named("process_sort_index", devices, 0, {"sort_index": -1})
    start, drawn = 0, count()
    for number in minibatches:
        block, place = timeline.block_of(number)
        length = nanoseconds(float(block.had[:, place].max()))
        seen = [view(block, place, device) for device in range(devices)]
        computing = [compute_lane(of) for of in seen]
        moving = [{lane: transfer_lane(of, lane) for lane in of.lanes()} for of in seen]
        for device, of in enumerate(seen):
            yield span(device, COMPUTE, f"minibatch {number}", "minibatch", (start, start + length))
            yield from _computing(of, computing[device], device, start)
            for lane, slices in moving[device].items():
                yield from _lane(slices, device, lane, start)
        for one in arrows(seen):
            yield from arrow(next(drawn), one.name, one.source, one.target, start)
        lanes_of = [slices for of in moving for slices in of.values()]
        counted = [("devices idle", counts.idle(computing))]
        counted += [(f"{kind} in flight", counts.in_flight(lanes_of, kind)) for kind in ("gather", "push")]
        for name, values in counted:
            yield from (counter(devices, name, start + at, value) for at, value in values)
        start += length


def _names(device: int, lanes: Iterable[str]) -> Iterator[Event]:
    yield named("process_name", device, 0, {"name": f"device {device}"})
    yield named("process_sort_index", device, 0, {"sort_index": device})
    for lane in lanes:
        yield named("thread_name", device, TRACKS[lane], {"name": lane})
        yield named("thread_sort_index", device, TRACKS[lane], {"sort_index": TRACKS[lane]})


def _computing(seen: View, slices: Sequence[Slice], device: int, start: int) -> Iterator[Event]:
    for microbatch, group in groupby(slices, key=lambda s: s.microbatch):
        members = list(group)
        if microbatch >= 0:
            whole = (start + nanoseconds(members[0].start), start + nanoseconds(members[-1].end))
            kind = "queue entry" if microbatch in seen.entries else "microbatch"
            yield span(device, COMPUTE, microbatch_named(microbatch, seen.entries), kind, whole)
        yield from _lane(members, device, COMPUTE, start)


def _lane(slices: Iterable[Slice], device: int, lane: str, start: int) -> Iterator[Event]:
    for s in slices:
        times = (start + nanoseconds(s.start), start + nanoseconds(s.end))
        if times[1] > times[0]:
            yield span(device, lane, s.what, s.kind, times, {"microbatch": s.microbatch})
