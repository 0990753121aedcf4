"""Events of the Trace Event JSON, which ui.perfetto.dev reads. Times are whole nanoseconds until they are written."""

from dataclasses import dataclass
from typing import Any

from odcsim.program import COMPUTE

Event = dict[str, Any]
TRACKS = {COMPUTE: 0, "comm": 1, "gather": 2, "push": 3, "nodes": 4}


@dataclass(frozen=True, slots=True)
class Moment:
    device: int
    lane: str
    at: int


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def named(what: str, device: int, track: int, args: Event) -> Event:
    return {"ph": "M", "name": what, "pid": device, "tid": track, "args": args}


def span(device: int, lane: str, name: str, kind: str, times: tuple[int, int], args: Event | None = None) -> Event:
    shown = {"ts": times[0] / 1000, "dur": (times[1] - times[0]) / 1000}  # microseconds
    return {"ph": "X", "name": name, "cat": kind, "pid": device, "tid": TRACKS[lane], **shown, "args": args or {}}


def arrow(number: int, name: str, source: Moment, target: Moment, start: int) -> list[Event]:
    """It leaves the slice that is open at its source and reaches the one at its target."""
    shared = {"name": name, "cat": "arrow", "id": number}
    ends = [("s", source, {}), ("f", target, {"bp": "e"})]
    return [
        {"ph": phase, **shared, "pid": m.device, "tid": TRACKS[m.lane], "ts": (start + m.at) / 1000, **binds}
        for phase, m, binds in ends
    ]


def counter(process: int, name: str, at: int, value: int) -> Event:
    return {"ph": "C", "name": name, "pid": process, "ts": at / 1000, "args": {name: value}}
