"""One rank's trace, read batch by batch: kernels, copies, collectives, the host's operators and what it said meanwhile.

Of an event a row of numbers is kept, so that a trace of a few hundred megabytes takes a few tens.
"""

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.events import ABOUT, OPTIMIZER, STEP, read_batches, timed
from odcsim.fitting.nccl import NotedCall, is_collective, noted
from odcsim.observed.shapes import MANY, Embedded, each, elements, is_shape, looked_up
from odcsim.support import budget
from odcsim.timeline import Floats, Ints

BASE, HOST_NAME = "baseTimeNanoseconds", "host_name"
WHOLE = (ABOUT, BASE, HOST_NAME)
ROW = 64  # bytes of an event that is kept
LOADS = re.compile(r"dataloader|load_batch|get_batch|data_load|next_batch|wait_for_batch", re.IGNORECASE)
COLLECTS = re.compile(r"\bgc\b|garbage|built-in function collect|gc\.py\(\d+\): collect", re.IGNORECASE)
ROOTS = ("FSDP::root_pre_forward", "FullyShardedDataParallel.forward", "DistributedDataParallel.forward")
OUTERMOST = (*ROOTS, "DeepSpeedEngine.forward")
UNIT = re.compile(r"FSDP::all_gather \((.{1,200})\)")
NESTING = "autograd::engine::evaluate_function"
FED = "aten::linear"
EMBEDDINGS = ("aten::embedding", "aten::embedding_bag")


class SpanRows:
    """Spans with two whole numbers each, as they come."""

    def __init__(self) -> None:
        self._begin, self._end = array("d"), array("d")
        self._first, self._second = array("q"), array("q")

    def add(self, begin: float, end: float, first: int = 0, second: int = 0) -> None:
        self._begin.append(begin)
        self._end.append(end)
        self._first.append(first)
        self._second.append(second)

    def __len__(self) -> int:
        return len(self._begin)

    def columns(self) -> tuple[Floats, Floats, Ints, Ints]:
        """In the order in which they begin."""
        begin, end = np.array(self._begin, np.float64), np.array(self._end, np.float64)
        order = np.argsort(begin, kind="stable")
        first, second = np.array(self._first, np.int64), np.array(self._second, np.int64)
        return begin[order], end[order], first[order], second[order]


@dataclass(slots=True)
class Names:
    """Numbers of names, from 0."""

    known: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))


@dataclass(slots=True, eq=False)
class RankEvents:
    """What a trace holds, in microseconds."""

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    names: Names = field(default_factory=Names)  # of kernels and operators, with what they ran on
    threads: Names = field(default_factory=Names)
    kernels: SpanRows = field(default_factory=SpanRows)  # correlation, name
    moves: SpanRows = field(default_factory=SpanRows)  # correlation, bytes
    collectives: SpanRows = field(default_factory=SpanRows)  # correlation, place in `notes`
    notes: list[NotedCall] = field(default_factory=list)
    launches: SpanRows = field(default_factory=SpanRows)  # correlation
    operators: SpanRows = field(default_factory=SpanRows)  # thread, name
    loading: SpanRows = field(default_factory=SpanRows)  # thread
    collecting: SpanRows = field(default_factory=SpanRows)  # thread
    backward: SpanRows = field(default_factory=SpanRows)  # thread
    steps: list[tuple[str, float, float, int]] = field(default_factory=list)  # name, begin, end, thread
    device_steps: list[tuple[str, float, float, int]] = field(default_factory=list)
    updates: list[tuple[float, float]] = field(default_factory=list)
    device_updates: list[tuple[float, float]] = field(default_factory=list)
    roots: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)
    embedded: list[Embedded] = field(default_factory=list)
    fed: SpanRows = field(default_factory=SpanRows)  # samples and tokens that a linear layer was given, or 0
    gloo: list[tuple[str, float, float, int, str]] = field(default_factory=list)  # name, begin, end, elements, of what
    calls: list[tuple[str, float, float, tuple[int, ...]]] = field(default_factory=list)  # of c10d, with elements
    spoken: list[tuple[float, float, str]] = field(default_factory=list)  # when NCCL was asked for what, by the host
    pids: set[int] = field(default_factory=set)  # that kernels ran under
    stacks: bool = False

    def __len__(self) -> int:
        every = (self.kernels, self.moves, self.collectives, self.launches, self.operators, self.backward)
        return sum(map(len, every))


def read_events(path: Path | str) -> RankEvents:
    found = RankEvents(Path(path))
    takers = {category: taker(found) for category, taker in _TAKERS.items()}

    def take(events: list[dict[str, Any]]) -> None:
        for event in events:
            category = event.get("cat")
            taker = takers.get(category) if type(category) is str else None
            if taker is not None:
                taker(event)
        budget.check(ROW * len(found), f"{len(found):,} events", path)

    found.about = read_batches(found.path, take, WHOLE)
    found.embedded.sort(key=lambda looked: looked.at)
    return found


def _span(event: dict[str, Any], path: Path) -> tuple[float, float]:
    if timed(event):
        begin = float(event["ts"])
        return begin, begin + float(event["dur"])
    told = ", ".join(f"{clock} {event.get(clock)!r:.40}" for clock in ("ts", "dur"))
    problem = f"event {str(event.get('name'))[:60]!r} has {told}"
    raise InputError(problem, where=str(path), fix="expected microseconds from 0: record the trace again")


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value < MANY else -1


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if type(args) is dict else {}


def _thread(event: dict[str, Any], found: RankEvents) -> int:
    return found.threads.number(f"{event.get('pid')} {event.get('tid')}")


_Taker = Callable[[dict[str, Any]], None]


def _kernels(found: RankEvents) -> _Taker:
    number = found.names.number

    def take(event: dict[str, Any]) -> None:
        begin, end = _span(event, found.path)
        args, name = _args(event), str(event.get("name", ""))
        correlation = _whole(args.get("correlation"))
        if type(pid := event.get("pid")) is int:
            found.pids.add(pid)
        if is_collective(name):
            found.collectives.add(begin, end, correlation, len(found.notes))
            found.notes.append(noted(args, name))
        else:
            found.kernels.add(begin, end, correlation, number(f"{name} {args.get('grid')} {args.get('block')}"))

    return take


def _moves(found: RankEvents) -> _Taker:
    def take(event: dict[str, Any]) -> None:
        begin, end = _span(event, found.path)
        args = _args(event)
        found.moves.add(begin, end, _whole(args.get("correlation")), _whole(args.get("bytes")))

    return take


def _launches(found: RankEvents) -> _Taker:
    def take(event: dict[str, Any]) -> None:
        if (correlation := _whole(_args(event).get("correlation"))) >= 0:
            found.launches.add(*_span(event, found.path), correlation)

    return take


def _marks(found: RankEvents) -> _Taker:
    def take(event: dict[str, Any]) -> None:
        name = str(event.get("name", ""))
        begin, end = _span(event, found.path)
        if name.startswith("gloo:"):
            args = _args(event)
            types = args.get("Input type")
            dtype = str(types[0])[:20] if type(types) is list and types else ""
            found.gloo.append((name, begin, end, elements(args.get("Input Dims")), dtype))
            return
        thread = _thread(event, found)
        if name.startswith(STEP):
            found.steps.append((name, begin, end, thread))
        elif name.startswith(OPTIMIZER):
            found.updates.append((begin, end))
        elif name.startswith("nccl:"):
            found.spoken.append((begin, end, name))
        elif LOADS.search(name):
            found.loading.add(begin, end, thread)
        elif COLLECTS.search(name):
            found.collecting.add(begin, end, thread)
        elif name in OUTERMOST:
            found.roots.setdefault(name, []).append((begin, end))
        elif unit := UNIT.fullmatch(name):
            found.units.add(unit[1])
        found.operators.add(begin, end, thread, -1)

    return take


def _device_marks(found: RankEvents) -> _Taker:
    def take(event: dict[str, Any]) -> None:
        name = str(event.get("name", ""))
        if name.startswith(STEP):
            found.device_steps.append((name, *_span(event, found.path), 0))
        elif name.startswith(OPTIMIZER):
            found.device_updates.append(_span(event, found.path))

    return take


def _operators(found: RankEvents) -> _Taker:
    number = found.names.number

    def take(event: dict[str, Any]) -> None:
        name, args = str(event.get("name", "")), _args(event)
        begin, end = _span(event, found.path)
        thread, dims = _thread(event, found), args.get("Input Dims")
        if name.startswith(NESTING):
            found.backward.add(begin, end, thread)
        elif name.startswith(("c10d::", "_c10d_functional::")):
            found.calls.append((name, begin, end, each(dims)))
        elif "::" in name and name != "record_param_comms":
            if name == FED and type(dims) is list and dims and is_shape(dims[0]):
                found.fed.add(begin, end, *(dims[0][:2] if len(dims[0]) == 3 else (0, 0)))
            if name in EMBEDDINGS and (looked := looked_up(begin, dims)) is not None:
                found.embedded.append(looked)
            found.operators.add(begin, end, thread, number(f"{name} {dims}"))
            return
        found.operators.add(begin, end, thread, -1)

    return take


def _functions(found: RankEvents) -> _Taker:
    """Of Python, where stacks were recorded."""

    def take(event: dict[str, Any]) -> None:
        found.stacks, name = True, str(event.get("name", ""))
        if "dataloader.py" in name and "__next__" in name:
            found.loading.add(*_span(event, found.path), _thread(event, found))
        elif COLLECTS.search(name):
            found.collecting.add(*_span(event, found.path), _thread(event, found))

    return take


_TAKERS: dict[str, Callable[[RankEvents], _Taker]] = {
    "kernel": _kernels,
    "gpu_memcpy": _moves,
    "gpu_memset": _moves,
    "cuda_runtime": _launches,
    "cuda_driver": _launches,
    "hip_runtime": _launches,
    "user_annotation": _marks,
    "gpu_user_annotation": _device_marks,
    "cpu_op": _operators,
    "python_function": _functions,
}
