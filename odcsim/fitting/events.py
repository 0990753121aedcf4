"""Events of a Chrome trace, as torch.profiler exports it, batch by batch: no more of it is held than a batch.

And what a collective is, from its name and from what torch notes beside NCCL's kernels, and RCCL's.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.measurements import Transfer
from odcsim.support.inputs import JsonStream, reading, text_of
from odcsim.support.values import LARGEST

EVENTS, ABOUT = "traceEvents", "distributedInfo"
STEP, OPTIMIZER = "ProfilerStep#", "Optimizer.step"
LATEST = 1e18  # microseconds: some count from 1970, none from before there was time
MICRO = 1e-6
NAME, GROUP, GROUP_SIZE, SEQUENCE = "Collective name", "Process Group Name", "Group size", "Seq"
COUNTS = ("In msg nelems", "Out msg nelems")
TOLD = (NAME, *COUNTS, GROUP_SIZE, "dtype", GROUP, SEQUENCE)
BYTES: Mapping[str, int] = {
    **dict.fromkeys(("double", "long", "long int", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("bfloat16", "half", "c10::bfloat16", "c10::half", "short"), 2),
    **dict.fromkeys(("byte", "char", "bool", "signed char", "unsigned char", "float8_e4m3fn", "float8_e5m2"), 1),
}
_KINDS = (  # the first that a name holds, in small letters and without what is no letter
    ("reducescatter", "reduce-scatter"),
    ("allgather", "all-gather"),
    ("allreduce", "all-reduce"),
    ("alltoall", "all-to-all"),
    ("sendrecv", "send-recv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)
_NO_LETTER = re.compile(r"[^a-z0-9]")
_COLLECTIVE = re.compile(
    r"(?<![a-z])(nccl|rccl|msccl)|(one_shot|two_shot|multimem)_\w{0,40}(reduce|gather)", re.IGNORECASE
)
SHORTEST = 3  # of each size that are taken to have waited least


def read_batches(
    path: Path, take: Callable[[list[dict[str, Any]]], None], wanted: Collection[str] = (ABOUT,)
) -> dict[str, Any]:
    """Hand over what has a beginning and an end; return what the trace says of itself under the wanted keys."""
    about: dict[str, Any] = {}
    missing, expected = "give a trace of torch.profiler", "a Chrome trace in JSON"
    with reading(path, missing=missing, expected=expected), text_of(path) as file:
        text, there = JsonStream(file, str(path)), False
        for key in text.members() if text.peek() == "{" else ():
            if key == EVENTS and text.peek() == "[":
                there = True
                for events in text.array():
                    take([e for e in events if type(e) is dict and e.get("ph") == "X"])
            elif key in wanted:
                about[key] = text.value()
            else:
                text.value()
        if not there:
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


@dataclass(frozen=True, slots=True)
class NotedCall:
    """A collective, as far as it is known."""

    kind: str  # of _KINDS; empty: none of them
    bytes: int = 0  # of the whole; 0: not known
    ranks: int = 0  # that meet; 0: not known
    group: str = ""
    sequence: int = -1  # its number in its group; -1: not known


def is_collective(kernel: str) -> bool:
    """NCCL's and RCCL's kernels, Microsoft's, and those of symmetric memory."""
    return _COLLECTIVE.search(kernel[:400]) is not None


def kind_of(name: str) -> str:
    letters = _NO_LETTER.sub("", name[:200].lower())
    return next((kind for part, kind in _KINDS if part in letters), "")


def noted(args: Any, kernel: str = "") -> NotedCall:
    """`args`: of the kernel's event; what they do not tell, its name may."""
    if not isinstance(args, dict):
        return NotedCall(kind_of(kernel))
    counts = [n for key in COUNTS if type(n := args.get(key)) is int and 0 < n < LARGEST]
    size = BYTES.get(str(args.get("dtype")).lower(), 0)
    ranks, sequence = (
        n if type(n) is int and 0 <= n < LARGEST else None for n in map(args.get, (GROUP_SIZE, SEQUENCE))
    )
    return NotedCall(
        kind_of(str(args.get(NAME, ""))) or kind_of(kernel),
        size * max(counts) if len(counts) == len(COUNTS) else 0,
        ranks or 0,
        str(args.get(GROUP, ""))[:200],
        -1 if sequence is None else sequence,
    )


def shortest(calls: Sequence[tuple[str, int, int, float]]) -> tuple[Transfer, ...]:
    """Of (kind, ranks, bytes, seconds), of each size those that waited least; nothing of a kind that came in one size
    only."""
    groups: dict[tuple[str, int], dict[int, list[float]]] = {}
    for kind, devices, size, seconds in calls:
        groups.setdefault((kind, devices), {}).setdefault(size, []).append(seconds)
    return tuple(
        Transfer(kind, devices, size, s)
        for (kind, devices), sizes in sorted(groups.items())
        if len(sizes) > 1 and sum(min(len(v), SHORTEST) for v in sizes.values()) > 2
        for size, every in sorted(sizes.items())
        for s in sorted(every)[:SHORTEST]
    )
