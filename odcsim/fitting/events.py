"""Events of a Chrome trace, as torch.profiler exports it, batch by batch: no more of it is held than a batch."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.support.inputs import JsonStream, reading, text_of

EVENTS, ABOUT = "traceEvents", "distributedInfo"
STEP, OPTIMIZER = "ProfilerStep#", "Optimizer.step"
LATEST = 1e18  # microseconds: some count from 1970, none from before there was time
MICRO = 1e-6


def read_batches(
    path: Path, take: Callable[[list[dict[str, Any]]], None], wanted: Collection[str] = (ABOUT,)
) -> dict[str, Any]:
    """Hand over what has a beginning and an end; return what the trace says of itself under the wanted keys."""
    about: dict[str, Any] = {}
    missing, expected = "give a trace of torch.profiler", "a Chrome trace in JSON"
    with reading(path, missing=missing, expected=expected), text_of(path) as file:
        text, found = JsonStream(file, str(path)), False
        for key in text.members() if text.peek() == "{" else ():
            if key == EVENTS and text.peek() == "[":
                found = True
                for events in text.array():
                    take([e for e in events if type(e) is dict and e.get("ph") == "X"])
            elif key in wanted:
                about[key] = text.value()
            else:
                text.value()
        if not found:
            raise InputError("not a trace", where=str(path), fix="export one with profiler.export_chrome_trace")
        text.end()
    return about


def timed(event: dict[str, Any]) -> bool:
    """Whether its times are numbers that may be a time."""
    return all(type(event.get(key)) in (int, float) and 0 <= event[key] <= LATEST for key in ("ts", "dur"))


def numbered(name: str, path: Path) -> int:
    """Of a profiler's step."""
    digits = name.removeprefix(STEP)
    if not digits.isdecimal() or len(digits) > 12:
        raise InputError(f"range {name[:40]!r} has no number", where=str(path), fix=f"expected {STEP}12")
    return int(digits)
