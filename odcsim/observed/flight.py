"""Dumps of PyTorch's Flight Recorder, one of each rank: the collectives that it called last, and where.

They are pickles as torch writes them by TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE, or what
`_dump_fr_trace` of torch._C._distributed_c10d returns; or the same as JSON, which has no stacks. Keys are those of
torch 2.13 (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, version 2.10 of the format). A dump does not name its
rank: the digits at the end of its file's name do.
"""

import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Any, NoReturn

from odcsim.errors import InputError
from odcsim.support import budget
from odcsim.support.inputs import read_bytes, reading
from odcsim.support.values import Given, shown

EXPECTED = "a dump of PyTorch's Flight Recorder, as a pickle or as JSON"
MISSING = "give the folder that has the dumps of all ranks"
RANKED = re.compile(r"(?<!\d)(\d{1,7})(?:\.(?:json|pickle|pkl))?$")  # how the name of a rank's dump ends
PICKLED, JSON = b"\x80", b"{"  # how its content begins
LARGE = 2**63  # of nanoseconds and of identities
VALUE = 100  # bytes of memory that a value of a pickle is taken for
SIMPLE = (str, int, float, bool, type(None))
# What unpickling a broken file may raise beside ValueError, OSError and RecursionError.
BROKEN = (pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError)
# What FSDP and DDP do, by a function of torch in the stack; the first that is in it. Names of torch 2.13 and of FSDP1.
FORWARD, BACKWARD, REDUCE = "forward", "backward", "reduce"
ROLES = (
    (REDUCE, {"post_backward", "_post_backward_hook", "_root_post_backward_final_callback"}),
    (BACKWARD, {"pre_backward", "_pre_backward", "_pre_backward_hook", "unpack_hook", "recompute_fn"}),
    (FORWARD, {"pre_forward", "_pre_forward", "_pre_forward_unshard"}),
    (REDUCE, {"_engine_run_backward"}),  # of DDP, whose reducer has no frame of its own
)
GATHER, SCATTER = re.compile("_?all_?gather", re.IGNORECASE), re.compile("_?reduce_scatter", re.IGNORECASE)
# Frames of torch and of Python itself.
THEIRS = re.compile(
    r"(?:site|dist)-packages/torch/|/torch/(?:distributed|nn|autograd|utils|optim|_\w+)/|/torch/_tensor\.py$"
    r"|/lib/python3\.\d+/(?!site-packages|dist-packages)|^<"
)


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of somebody's program."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class GroupCall:
    """What a rank called. Calls of one number in one group are one collective; `peer` is of sends and receives.

    Gloo's are scheduled until they retire, and retire when they fail, too: whether a rank's last is over is in doubt.
    """

    group: str
    about: str  # what the group is for, as whoever made it says
    number: int
    kind: str
    sizes: tuple[tuple[tuple[int, ...], ...], ...]  # of inputs and of outputs
    types: tuple[tuple[str, ...], ...]
    over: bool
    doubt: bool
    created: int  # nanoseconds
    peer: bool = False
    role: str = ""
    lines: tuple[CodeLine, ...] = ()  # of the stack what is not torch's, the innermost first

    @property
    def line(self) -> CodeLine | None:
        return self.lines[0] if self.lines else None

    @property
    def done(self) -> bool:
        return self.over and not self.doubt

    @property
    def place(self) -> tuple[object, ...]:
        """Where in the program it is, whatever it moves."""
        return self.lines, self.role

    @property
    def like(self) -> tuple[object, ...]:
        """What is the same each time that a program comes to it; without stacks its sizes are taken for that."""
        return self.group, self.kind, self.role, self.lines or self.sizes


@dataclass(frozen=True, slots=True)
class RankDump:
    """`groups`: the ranks of each, where the dump tells them; gloo's does not."""

    rank: int
    calls: tuple[GroupCall, ...]
    groups: dict[str, tuple[int, ...]]
    wrapped: bool  # earlier calls were overwritten


def read(paths: Sequence[Path | str]) -> dict[int, RankDump]:
    """Of each rank, from files or from folders that have them."""
    files: dict[int, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(
                "no such file or folder", where=str(path), fix="give the folder of dumps, one of each rank"
            )
        inside = path.is_dir()
        for file in _files(path) if inside else [path]:
            ranked = RANKED.search(file.name)
            if inside and (ranked is None or not _begins(file)):
                continue
            if ranked is None:
                raise InputError("no rank in its name", where=str(file), fix="end it with the rank: trace_rank_3")
            if (other := files.setdefault(int(ranked[1]), file)) != file:
                problem = f"a dump of rank {int(ranked[1])}, as {other} is"
                raise InputError(problem, where=str(file), fix="give the dumps of one run, a file for each rank")
    if len(files) < 2:
        problem = "the dump of one rank alone, which tells nothing of the others" if files else "no dump in it"
        where = ", ".join(map(str, paths))[:200] or "no path"
        raise InputError(problem, where=where, fix="give a dump of each rank: files whose names end with it")
    shared: dict[Any, Any] = {}
    return {rank: read_rank(files[rank], rank, shared) for rank in sorted(files)}


def read_rank(path: Path, rank: int, shared: dict[Any, Any]) -> RankDump:
    """`shared`: what calls of all ranks have in common, each once."""
    with reading(path, *BROKEN, missing=MISSING, expected=EXPECTED):
        content = read_bytes(path)
        if content[:1] == PICKLED:
            given = _unpickle(content)
        elif content.lstrip()[:1] == JSON:
            given = json.loads(content)
        else:
            raise ValueError("neither a pickle nor JSON")
        if _count(given, {}) > budget.most() // VALUE:  # a small pickle may hold one list many times
            raise ValueError("it holds too many values")
        whole = Given("", given, str(path))
        whole.key("version").text()
        groups = {}
        for name, group in whole.key("pg_config").mapping().items():
            told = Given(f"pg_config.{shown(name)}", group, str(path)).key("ranks").text()
            if not re.fullmatch(r"\[(\d{1,7}(, ?\d{1,7})*)?\]", told):
                Given("pg_config ranks", told, str(path)).refuse("expected a list of ranks")
            if ranks := tuple(sorted({int(number) for number in re.findall(r"\d+", told)})):
                groups[str(name)] = ranks
        known: dict[int, tuple[str, CodeLine | None]] = {}  # a pickle holds each frame once
        entries = whole.key("entries", []).items()
        calls = tuple(_call(entry, known, shared, entry is entries[-1]) for entry in entries)
        wrapped = bool(entries) and entries[0].key("record_id").whole(0, LARGE) > 0
        return RankDump(rank, calls, groups, wrapped)


def _call(entry: Given, known: dict[int, tuple[str, CodeLine | None]], shared: dict[Any, Any], last: bool) -> GroupCall:
    names = entry.key("process_group")
    if type(names.value) is tuple:  # as pickles have it
        names = Given(names.name, list(names.value), names.where)
    if len(names.values()) != 2:
        names.refuse("expected a name and what the group is for")
    frames = []
    for i, frame in enumerate(entry.key("frames", []).values()):
        if (one := known.get(id(frame))) is None:
            of = Given(f"{entry.name}.frames[{i}]", frame, entry.where)
            name, file, line = of.key("name").text(), of.key("filename").text(), of.key("line").whole(0, LARGE)
            one = name, None if THEIRS.search(file.replace("\\", "/")) else CodeLine(file, line, name)
            known[id(frame)] = one
        frames.append(one)
    functions, lines = [name for name, _ in frames], tuple(line for _, line in frames if line)
    library, _, kind = entry.key("profiling_name").text()[:80].rpartition(":")
    role = next((role for role, of in ROLES if not of.isdisjoint(functions)), "")
    if functions and SCATTER.match(functions[0]):  # gloo's is an all_reduce of which each rank keeps a part
        kind = "reduce_scatter"
    elif not functions and library != "gloo":  # then what is gathered or scattered is taken for FSDP's
        role = FORWARD if GATHER.match(kind) else REDUCE if SCATTER.match(kind) else ""
    sizes = tuple(tuple(of.wholes(0) for of in entry.key(key).items()) for key in ("input_sizes", "output_sizes"))
    types = tuple(
        tuple(of.text()[:20] for of in entry.key(key, []).items()) for key in ("input_dtypes", "output_dtypes")
    )
    state = entry.key("state").one_of(("scheduled", "started", "completed"))
    retired = entry.key("retired", False).flag() and library == "gloo"  # NCCL's have timed out then
    group, about = (name.text()[:80] for name in names.items())
    number, created = entry.key("collective_seq_id").whole(0, LARGE), entry.key("time_created_ns").whole(0, LARGE)
    peer = entry.key("is_p2p", False).flag()
    over = state == "completed" or retired
    sizes, types, lines = (shared.setdefault(each, each) for each in (sizes, types, lines))
    return GroupCall(group, about, number, kind, sizes, types, over, retired and last, created, peer, role, lines)


def numbered(dump: RankDump) -> dict[str, dict[int, GroupCall]]:
    """The collectives of each group by their number; several that were called as one are one.

    NCCL tells of one of these alone that it is over, and a group's collectives end in their order.
    """
    groups: dict[str, dict[int, GroupCall]] = {}
    for call in dump.calls:
        if call.peer:
            continue
        numbers = groups.setdefault(call.group, {})
        if (first := numbers.get(call.number)) is None:
            numbers[call.number] = call
        else:
            sizes = tuple(a + b for a, b in zip(first.sizes, call.sizes, strict=True))
            types = tuple(a + b for a, b in zip(first.types, call.types, strict=True))
            numbers[call.number] = replace(first, sizes=sizes, types=types, over=first.over or call.over)
    for numbers in groups.values():
        over = False
        for number in sorted(numbers, reverse=True):
            if over and not numbers[number].over:
                numbers[number] = replace(numbers[number], over=True)
            over = numbers[number].over
    return groups


def _files(folder: Path) -> list[Path]:
    with reading(folder, missing=MISSING, expected="a folder"):
        return sorted(file for file in folder.iterdir() if file.is_file())


def _begins(path: Path) -> bool:
    """Whether it may be a dump at all."""
    with reading(path, missing=MISSING, expected=EXPECTED), path.open("rb") as file:
        head = file.read(64)
    return head[:1] == PICKLED or head.lstrip()[:1] == JSON


class _Plain(pickle.Unpickler):
    """Values alone: whatever names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module[:40]}.{name[:40]}, where a dump holds values alone")


def _unpickle(content: bytes) -> Any:
    stream = BytesIO(content)
    value = _Plain(stream).load()
    if stream.read(1):
        raise ValueError("something follows the dump")
    return value


def _count(value: Any, known: dict[int, float]) -> float:
    """How many values it holds, one that it holds twice counted twice; refuse what is none of a dump."""
    if type(value) in SIMPLE:
        return 1
    if type(value) not in (dict, list, tuple):
        raise ValueError(f"it holds a {type(value).__name__}")
    if (count := known.get(id(value))) is None:
        known[id(value)] = inf  # of what holds itself
        inside = [*value, *value.values()] if type(value) is dict else value
        count = known[id(value)] = 1 + sum(1 if type(one) in SIMPLE else _count(one, known) for one in inside)
    return count
