"""A timeline as trace events for ui.perfetto.dev: a process per device, a track per lane, waiting as slices of its own.

The format is the Trace Event JSON: slices of one track must nest or be apart, so lanes, which work in order, are tracks
of their own. Times become whole nanoseconds before anything else, so that rounding cannot make neighbours overlap.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.files import replacing
from odcsim.program import COMPUTE
from odcsim.results.slices import Slice, View, compute_lane, microbatch_named, transfer_lane, view
from odcsim.timeline import Timeline

WINDOW = 3  # minibatches written unless asked for more: viewers give up on large files
Event = dict[str, Any]
_TRACKS = {COMPUTE: 0, "comm": 1, "gather": 2, "push": 3, "nodes": 4}


def write(timeline: Timeline, path: Path | str, minibatches: Sequence[int] = ()) -> int:
    """Write the minibatches (default: the first three) one after another; compressed where the name ends in .gz.

    Returns how many events there are. The same timeline gives the same bytes.
    """
    path = Path(path)
    found = list(events(timeline, minibatches or range(min(WINDOW, len(timeline.samples)))))
    content = {"traceEvents": found, "displayTimeUnit": "ms", "otherData": timeline.about.header()}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    data = gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
    with replacing(path) as file:
        file.write(data)
    return len(found)


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
    for device in range(timeline.about.devices):
        yield from _names(device, lanes)
    start = 0
    for number in minibatches:
        block, place = timeline.block_of(number)
        length = _nanoseconds(float(block.had[:, place].max()))
        for device in range(timeline.about.devices):
            yield _slice(device, COMPUTE, f"minibatch {number}", "minibatch", (start, start + length))
            yield from _device(view(block, place, device), device, start)
        start += length


def _names(device: int, lanes: Iterable[str]) -> Iterator[Event]:
    yield _name("process_name", device, 0, {"name": f"device {device}"})
    yield _name("process_sort_index", device, 0, {"sort_index": device})
    for lane in lanes:
        yield _name("thread_name", device, _TRACKS[lane], {"name": lane})
        yield _name("thread_sort_index", device, _TRACKS[lane], {"sort_index": _TRACKS[lane]})


def _name(what: str, device: int, track: int, args: Event) -> Event:
    return {"ph": "M", "name": what, "pid": device, "tid": track, "args": args}


def _device(seen: View, device: int, start: int) -> Iterator[Event]:
    for microbatch, group in groupby(compute_lane(seen), key=lambda s: s.microbatch):
        members = list(group)
        if microbatch >= 0:
            whole = (start + _nanoseconds(members[0].start), start + _nanoseconds(members[-1].end))
            kind = "queue entry" if microbatch in seen.entries else "microbatch"
            yield _slice(device, COMPUTE, microbatch_named(microbatch, seen.entries), kind, whole)
        yield from _lane(members, device, COMPUTE, start)
    for lane in seen.lanes():
        yield from _lane(transfer_lane(seen, lane), device, lane, start)


def _lane(slices: Iterable[Slice], device: int, lane: str, start: int) -> Iterator[Event]:
    for s in slices:
        span = (start + _nanoseconds(s.start), start + _nanoseconds(s.end))
        if span[1] > span[0]:
            yield _slice(device, lane, s.what, s.kind, span, {"microbatch": s.microbatch})


def _slice(device: int, lane: str, name: str, kind: str, span: tuple[int, int], args: Event | None = None) -> Event:
    times = {"ts": span[0] / 1000, "dur": (span[1] - span[0]) / 1000}  # microseconds
    return {"ph": "X", "name": name, "cat": kind, "pid": device, "tid": _TRACKS[lane], **times, "args": args or {}}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
