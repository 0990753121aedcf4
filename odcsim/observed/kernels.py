"""One rank's trace, read batch by batch: kernels, copies, collectives, the host's operators and what it said meanwhile.

Of an event a row of numbers is kept, so that a trace of a few hundred megabytes takes a few tens.
"""

import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.fitting.events import ABOUT, OPTIMIZER, STEP, NotedCall, is_collective, noted, read_batches, timed
from odcsim.support import budget
from odcsim.timeline import Floats, Ints

MANY = 2**62
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


@dataclass(frozen=True, slots=True)
class Embedded:
    """A look-up of tokens: when, in a table of how many rows, how many samples of how many tokens."""

    at: float
    rows: int
    samples: int
    tokens: int


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
    trace = RankEvents(Path(path))

    def take(events: list[dict[str, Any]]) -> None:
        for event in events:
            category = event.get("cat")
            taker = TAKERS.get(category) if type(category) is str else None
            if taker is not None:
                taker(event, trace)
        budget.check(ROW * len(trace), f"{len(trace):,} events", path)

    trace.about = read_batches(trace.path, take, WHOLE)
    trace.embedded.sort(key=lambda looked: looked.at)
    return trace


def _span(event: dict[str, Any], path: Path) -> tuple[float, float]:
    if timed(event):
        begin = float(event["ts"])
        return begin, begin + float(event["dur"])
    times = ", ".join(f"{clock} {event.get(clock)!r:.40}" for clock in ("ts", "dur"))
    problem = f"event {str(event.get('name'))[:60]!r} has {times}"
    raise InputError(problem, where=str(path), fix="expected microseconds from 0: record the trace again")


def _number(value: Any) -> int:
    return value if type(value) is int and 0 <= value < MANY else -1


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if type(args) is dict else {}


def _thread(event: dict[str, Any], trace: RankEvents) -> int:
    return trace.threads.number(f"{event.get('pid')} {event.get('tid')}")


def _kernel(event: dict[str, Any], trace: RankEvents) -> None:
    begin, end = _span(event, trace.path)
    args, name = _args(event), str(event.get("name", ""))
    correlation = _number(args.get("correlation"))
    if type(pid := event.get("pid")) is int:
        trace.pids.add(pid)
    if is_collective(name):
        trace.collectives.add(begin, end, correlation, len(trace.notes))
        trace.notes.append(noted(args, name))
    else:
        number = trace.names.number(f"{name} {args.get('grid')} {args.get('block')}")
        trace.kernels.add(begin, end, correlation, number)


def _move(event: dict[str, Any], trace: RankEvents) -> None:
    args = _args(event)
    trace.moves.add(*_span(event, trace.path), _number(args.get("correlation")), _number(args.get("bytes")))


def _launch(event: dict[str, Any], trace: RankEvents) -> None:
    if (correlation := _number(_args(event).get("correlation"))) >= 0:
        trace.launches.add(*_span(event, trace.path), correlation)


def _mark(event: dict[str, Any], trace: RankEvents) -> None:
    name = str(event.get("name", ""))
    begin, end = _span(event, trace.path)
    if name.startswith("gloo:"):
        args = _args(event)
        types = args.get("Input type")
        dtype = str(types[0])[:20] if type(types) is list and types else ""
        trace.gloo.append((name, begin, end, elements(args.get("Input Dims")), dtype))
        return
    thread = _thread(event, trace)
    if name.startswith(STEP):
        trace.steps.append((name, begin, end, thread))
    elif name.startswith(OPTIMIZER):
        trace.updates.append((begin, end))
    elif name.startswith("nccl:"):
        trace.spoken.append((begin, end, name))
    elif LOADS.search(name):
        trace.loading.add(begin, end, thread)
    elif COLLECTS.search(name):
        trace.collecting.add(begin, end, thread)
    elif name in OUTERMOST:
        trace.roots.setdefault(name, []).append((begin, end))
    elif unit := UNIT.fullmatch(name):
        trace.units.add(unit[1])
    trace.operators.add(begin, end, thread, -1)


def _device_mark(event: dict[str, Any], trace: RankEvents) -> None:
    name = str(event.get("name", ""))
    if name.startswith(STEP):
        trace.device_steps.append((name, *_span(event, trace.path), 0))
    elif name.startswith(OPTIMIZER):
        trace.device_updates.append(_span(event, trace.path))


def _operator(event: dict[str, Any], trace: RankEvents) -> None:
    name, args = str(event.get("name", "")), _args(event)
    begin, end = _span(event, trace.path)
    thread, dims, number = _thread(event, trace), args.get("Input Dims"), -1
    if name.startswith(NESTING):
        trace.backward.add(begin, end, thread)
    elif name.startswith(("c10d::", "_c10d_functional::")):
        trace.calls.append((name, begin, end, each(dims)))
    elif "::" in name and name != "record_param_comms":
        if name == FED and type(dims) is list and dims and is_shape(dims[0]):
            trace.fed.add(begin, end, *(dims[0][:2] if len(dims[0]) == 3 else (0, 0)))
        if name in EMBEDDINGS and (looked := looked_up(begin, dims)) is not None:
            trace.embedded.append(looked)
        number = trace.names.number(f"{name} {dims}")
    trace.operators.add(begin, end, thread, number)


def _function(event: dict[str, Any], trace: RankEvents) -> None:
    """Of Python, where stacks were recorded."""
    trace.stacks, name = True, str(event.get("name", ""))
    if "dataloader.py" in name and "__next__" in name:
        trace.loading.add(*_span(event, trace.path), _thread(event, trace))
    elif COLLECTS.search(name):
        trace.collecting.add(*_span(event, trace.path), _thread(event, trace))


TAKERS: dict[str, Callable[[dict[str, Any], RankEvents], None]] = {  # by category
    "kernel": _kernel,
    "gpu_memcpy": _move,
    "gpu_memset": _move,
    "cuda_runtime": _launch,
    "cuda_driver": _launch,
    "hip_runtime": _launch,
    "user_annotation": _mark,
    "gpu_user_annotation": _device_mark,
    "cpu_op": _operator,
    "python_function": _function,
}


def looked_up(at: float, dims: Any) -> Embedded | None:
    """Of the shapes of an embedding's table and of what is looked up in it."""
    if type(dims) is not list or len(dims) < 2 or not all(is_shape(shape) for shape in dims[:2]):
        return None
    *samples, tokens = dims[1]
    return Embedded(at, dims[0][0], min(math.prod(samples), MANY), tokens)


def is_shape(dims: Any) -> bool:
    return type(dims) is list and 0 < len(dims) < 9 and all(type(n) is int and 0 < n < 2**40 for n in dims)


def each(dims: Any) -> tuple[int, ...]:
    """Elements of each argument that has any."""
    return tuple(n for one in dims[:9] if (n := elements([one]))) if type(dims) is list else ()


def elements(dims: Any, deep: int = 3) -> int:
    """Of one argument or of a list of tensors."""
    if type(dims) is not list or not deep:
        return 0
    if is_shape(dims):
        return min(math.prod(dims), MANY)
    return min(sum(elements(one, deep - 1) for one in dims[:10_000]), MANY)
