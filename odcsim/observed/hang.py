"""Why a run hangs: the first collective that not all ranks of its group came to, by dumps of PyTorch's Flight Recorder.

Collectives pair by their number in a group. Ranks whose programs part go on to pair for as long as kinds and sizes
agree, so that where a run waits tells less than where stacks began to differ. A cause is named where its sign is in the
dumps, and else none.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from odcsim.answer import Result
from odcsim.observed.flight import FORWARD, GATHER, REDUCE, CodeLine, GroupCall, RankDump, numbered, read

DEFAULT = "default_pg"  # what torch calls the group of all ranks
# Kinds whose sizes differ between ranks by right.
UNEVEN = re.compile("_?(all_?to_?all|scatter|gather|all_gather_v|reduce_scatter_v|coalesced)", re.IGNORECASE)
# Functions that some ranks call and others do not.
ASIDE = re.compile(
    r"(?:^|_)(?:eval|evaluate|evaluation|validate|validation|save|saving|checkpoint|generate|predict|prediction|report)"
    r"(?:_|$)|^_?log(?:_metrics|_stats|_step|_loss|ging)?$|^push_to_hub$"
)
LOADS = re.compile(r"(?:^|_)(?:dataloader|loader|dataset|sampler|next_batch|get_batch|load_batch)(?:_|$)")
MOST = 10**6  # ranks
Columns = dict[str, dict[int, GroupCall]]  # of one rank


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Ranks that did not come, and what they called instead."""

    ranks: tuple[int, ...]
    call: GroupCall | None = None  # missing where their dumps have none
    waits: bool = False  # in it, or called it last
    gone: bool = False  # they have no dump


@dataclass(frozen=True, slots=True, repr=False)
class Hang(Result):
    """`waiting` ranks called `call`; `others` did not. `parted`: what one of both called where their stacks or their
    collectives differ first; its second is missing where the other called nothing more."""

    ranks: int
    call: GroupCall | None = None  # missing where no rank waits
    waiting: tuple[int, ...] = ()
    others: tuple[Elsewhere, ...] = ()
    cause: str = ""  # of CAUSES
    parted: tuple[GroupCall, GroupCall | None] | None = None
    ahead: tuple[int, ...] = ()  # ranks that left a unit out, or have fewer microbatches
    microbatches: tuple[int, int] | None = None  # begun in this step, of those that wait and of the others
    stacks: bool = True  # whether dumps have them
    members: bool = True  # whether dumps tell who is in the group

    @property
    def runs(self) -> bool:
        """Whether nobody waits for ever."""
        return self.call is None

    def as_json(self) -> dict[str, Any]:
        """As `odcsim audit --hang --json` prints it."""
        return {"schema": 1, "runs": self.runs, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Stuck:
    """A number of a group at which ranks wait."""

    number: int
    came: dict[int, GroupCall]
    waiting: tuple[int, ...]
    odd: tuple[int, ...]  # came with another collective
    absent: tuple[int, ...]
    gone: tuple[int, ...]  # have no dump


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one waiting rank and one of the others called: `x` and `y` where they part."""

    x: GroupCall
    y: GroupCall | None
    last: GroupCall | None  # of the other's calls
    mine: Sequence[GroupCall]
    theirs: Sequence[GroupCall]
    gone: bool = False
    came: bool = False  # every rank
    whole: bool = True  # no call of theirs was overwritten

    @property
    def usual(self) -> tuple[bool, bool]:
        """Whether the other ever called the like of x, and this rank that of y: both come to it, at some time."""
        y = self.y
        return any(c.like == self.x.like for c in self.theirs), bool(y and any(c.like == y.like for c in self.mine))

    def apart(self, names: re.Pattern[str]) -> bool:
        """Whether one of both alone is in a function with such a name."""
        other = self.y or self.last
        return bool(other and other.lines) and bool(aside(self.x, names)) != bool(other and aside(other, names))


def _ends_step(e: Evidence) -> bool:
    """One is in a microbatch, and the other calls what all ranks call outside of them."""
    usual_x, usual_y = e.usual
    if e.y is None or e.y.peer or bool(e.x.role) == bool(e.y.role):
        return False
    return usual_y if e.x.role else usual_x


def _leaves_unit(e: Evidence) -> bool:
    if e.y is None or not e.x.role or not e.y.role:
        return False
    if FORWARD in (e.x.role, e.y.role):
        return e.x.place != e.y.place or e.x.sizes != e.y.sizes
    return e.x.role == e.y.role == REDUCE and e.x.sizes != e.y.sizes


def _reorders(e: Evidence) -> bool:
    """Both call both, or each waits in a group of its own for the other."""
    if e.y is None or e.y.peer or e.x.role or e.y.role:
        return False
    if all(e.usual) and e.x.like != e.y.like and (e.x.lines or e.x.kind != e.y.kind):
        return True
    return e.x.group != e.y.group and all(c.group != e.y.group or c.number < e.y.number for c in e.mine)


# The first whose sign is there.
CAUSES: dict[str, Callable[[Evidence], bool]] = {
    "dead": lambda e: e.gone,
    "link": lambda e: e.came,
    "microbatches": _ends_step,
    "loader": lambda e: e.apart(LOADS),
    "evaluation": lambda e: e.apart(ASIDE),
    "tower": _leaves_unit,
    "sizes": lambda e: e.y is not None and e.x.group == e.y.group and e.x.kind == e.y.kind and e.x.place == e.y.place,
    "order": _reorders,
    "silent": lambda e: e.y is None,
    "peers": lambda e: e.y is not None and e.y.peer,
    "branch": lambda e: e.y is not None and bool(e.x.lines and e.y.lines) and e.x.lines != e.y.lines,
    "unknown": lambda _: True,
}


def why(paths: Sequence[Path | str], devices: int | None = None) -> Hang:
    """Of a folder of dumps, or of files. `devices`: how many ranks ran, which gloo's dumps may not tell."""
    return hang_of(read(paths), devices)


def hang_of(dumps: dict[int, RankDump], devices: int | None = None) -> Hang:
    tables = {rank: numbered(dump) for rank, dump in dumps.items()}
    told = {name: ranks for dump in dumps.values() for name, ranks in dump.groups.items() if dump.rank in ranks}
    sized = max([devices or 0, *(_size(c) for dump in dumps.values() for c in dump.calls if c.about == DEFAULT)])
    world = max([sized - 1, *dumps, *(rank for ranks in told.values() for rank in ranks)]) + 1
    about = {call.group: call.about for dump in dumps.values() for call in dump.calls}
    stacks = any(call.lines for dump in dumps.values() for call in dump.calls)
    every = {}
    for group, ranks in _members(dumps, tables, about, world):
        if (stuck := _stuck(group, ranks, tables, dumps)) is not None:
            every[group, ranks] = stuck
    pending = {rank: _pending(dump, tables[rank], every) for rank, dump in dumps.items()}

    def order(key: tuple[str, tuple[int, ...]]) -> tuple[object, ...]:
        """First where somebody lacks who waits nowhere else, and most wait."""
        stuck = every[key]
        elsewhere = sum(pending[r] is not None for r in (*stuck.odd, *stuck.absent))
        calls = [stuck.came[r] for r in stuck.waiting]
        inside, begun = any(call.role for call in calls), min(call.created for call in calls)
        return not (stuck.odd or stuck.absent or stuck.gone), elsewhere, -len(stuck.waiting), not inside, begun

    if not every:
        peers = {rank: call for rank, call in pending.items() if call is not None}
        if not peers:
            return Hang(world, stacks=stacks)
        return Hang(world, next(iter(peers.values())), tuple(peers), cause="peers", stacks=stacks)
    stuck = every[least := min(every, key=order)]
    one, first = stuck.waiting[0], stuck.came[stuck.waiting[0]]
    calls: dict[int, GroupCall | None] = {r: stuck.came[r] for r in stuck.odd}
    calls |= {r: pending[r] or (dumps[r].calls[-1] if dumps[r].calls else None) for r in stuck.absent}
    waits = {r for r in calls if r in stuck.odd or pending[r] is not None}
    others = (*_camps(calls, waits), *([Elsewhere(stuck.gone, gone=True)] if stuck.gone else []))
    known = least[0] in told or (first.about == DEFAULT and sized > 0)
    if not (there := [*stuck.odd, *stuck.absent]):
        evidence = Evidence(first, None, None, (), (), gone=bool(stuck.gone), came=not stuck.gone)
        return Hang(world, first, stuck.waiting, others, _cause(evidence), None, stuck.gone, None, stacks, known)
    other = there[0]
    x, y = _parted(tables[one][first.group], tables[other].get(first.group, {}), stuck.number) or (
        first,
        stuck.came.get(other) or pending[other],
    )
    whole = not (dumps[one].wrapped or dumps[other].wrapped)
    evidence = Evidence(x, y, calls.get(other), dumps[one].calls, dumps[other].calls, whole=whole)
    cause = _cause(evidence)
    counts = _microbatches(evidence) if cause == "microbatches" else None
    ahead: tuple[int, ...] = ()
    if cause == "tower":
        ahead = {-1: stuck.waiting, 1: tuple(there), 0: ()}[_left_out(evidence)]
    elif cause == "microbatches":
        ahead = tuple(there) if x.role else stuck.waiting
    return Hang(world, first, stuck.waiting, others, cause, (x, y), ahead, counts, stacks, known)


def aside(call: GroupCall, names: re.Pattern[str] = ASIDE) -> CodeLine | None:
    """The innermost function of such a name that it is called in."""
    return next((line for line in call.lines if names.search(line.function.lower())), None)


def _cause(evidence: Evidence) -> str:
    return next(name for name, holds in CAUSES.items() if holds(evidence))


def _size(call: GroupCall) -> int:
    """Of its group, as a gather tells it by its output; else 0."""
    inputs, outputs = (sum(map(prod, sizes)) for sizes in call.sizes)
    return outputs // inputs if GATHER.match(call.kind) and inputs and outputs < MOST * inputs else 0


def _members(
    dumps: dict[int, RankDump], tables: dict[int, Columns], about: dict[str, str], world: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Ranks of each group, several times where groups share a name: those that dumps tell, or else all that called."""
    found = []
    for group, what in about.items():
        told = {dump.groups[group] for dump in dumps.values() if dump.rank in dump.groups.get(group, ())}
        called = tuple(rank for rank in tables if group in tables[rank])
        found += [(group, ranks) for ranks in sorted(told)]
        if not told:
            found.append((group, tuple(range(world)) if what == DEFAULT else called))
    return found


def _stuck(
    group: str, members: tuple[int, ...], tables: dict[int, Columns], dumps: dict[int, RankDump]
) -> _Stuck | None:
    """The first number that not all came to, or came to with other collectives, or that is not over for anybody."""
    columns = {rank: tables[rank].get(group, {}) for rank in members if rank in tables}
    last = {rank: max(column) for rank, column in columns.items() if column}
    gone = tuple(rank for rank in members if rank not in tables)
    for number in sorted({number for column in columns.values() for number in column}):
        came = {rank: column[number] for rank, column in columns.items() if number in column}
        done = [call.done for call in came.values()]
        # Who has no call of this group at all may have come to what is over, where calls were overwritten.
        lost = {rank for rank in columns if rank not in last and dumps[rank].wrapped and all(done)}
        absent = tuple(rank for rank in columns if last.get(rank, -1) < number and rank not in lost)
        camps: dict[object, list[int]] = {}
        for rank, call in came.items():
            uneven = UNEVEN.match(call.kind)
            camps.setdefault(call.kind if uneven else (call.kind, call.sizes, call.types), []).append(rank)
        differ = len(camps) > 1 and not (all(done) and len({call.kind for call in came.values()}) == 1)
        still = not any(done if gone else [call.over for call in came.values()])
        if absent or differ or still:
            largest = max(camps.values(), key=len) if differ else list(came)
            odd = tuple(rank for rank in came if rank not in largest)
            return _Stuck(number, came, tuple(largest), odd, absent, gone)
    return None


def _pending(dump: RankDump, columns: Columns, every: dict[tuple[str, tuple[int, ...]], _Stuck]) -> GroupCall | None:
    """What this rank waits in: what it called first of all that is not over, or its last where others lack."""
    done = max((i for i, call in enumerate(dump.calls) if call.over), default=-1)
    left = [call for call in dump.calls[done + 1 :] if call.peer]
    left += [call for column in columns.values() for call in column.values() if not call.over]
    for (group, ranks), stuck in every.items():
        if dump.rank in ranks:
            left += [call for n, call in columns.get(group, {}).items() if call.doubt and n >= stuck.number]
    return min(left, key=lambda call: call.created, default=None)


def _camps(calls: dict[int, GroupCall | None], waits: set[int]) -> list[Elsewhere]:
    """Ranks that called the same are one."""
    camps: dict[object, list[int]] = {}
    for rank, call in calls.items():
        camps.setdefault((call and (call.like, call.number), rank in waits), []).append(rank)
    return [Elsewhere(tuple(ranks), calls[ranks[0]], ranks[0] in waits) for ranks in camps.values()]


def _parted(
    mine: dict[int, GroupCall], theirs: dict[int, GroupCall], number: int
) -> tuple[GroupCall, GroupCall] | None:
    """The first number up to this one at which both were called from other places. That some ranks call one collective
    from a line of their own is usual, but not inside of forward and backward."""
    both = sorted(n for n in mine.keys() & theirs.keys() if n <= number)
    unlike = [n for n in both if mine[n].place != theirs[n].place]
    if unlike[:1] == both[:1] != both:  # from the oldest on: one is called from further functions, as of a profiler
        unlike = [n for n in both if (mine[n].line, mine[n].role) != (theirs[n].line, theirs[n].role)]
    inside = [n for n in unlike if mine[n].role or theirs[n].role]
    if not inside and (not unlike or unlike[-1] != both[-1]):
        return None
    first = inside[0] if inside else next(n for i, n in enumerate(unlike) if unlike[-1] - n == len(unlike) - 1 - i)
    return mine[first], theirs[first]


def _left_out(e: Evidence) -> int:
    """Who left a unit out: 1 the other, -1 this rank, 0 nobody knows."""
    x, y = e.x, e.y
    assert y is not None
    if x.role != y.role:  # who leaves one out is ahead of the rest
        return 1 if x.role == FORWARD else -1
    for calls in (e.mine, e.theirs):  # in which order a forward pass came to both
        passed: set[object] = set()
        for call in calls:
            if call.role != FORWARD:
                passed.clear()
            elif call.like in (x.like, y.like):
                if passed - {call.like}:
                    return 1 if call.like == y.like else -1
                passed.add(call.like)
    return 0


def _microbatches(e: Evidence) -> tuple[int, int] | None:
    """How many microbatches both began since all ranks called last what ends a step."""
    assert e.y is not None
    end = e.x if e.y.role else e.y
    counts = []
    for calls, until in ((e.mine, e.x), (e.theirs, e.y)):
        at = next(i for i, c in enumerate(calls) if (c.group, c.number, c.peer) == (until.group, until.number, False))
        before = calls[:at]
        ends = [i for i, call in enumerate(before) if call.like == end.like]
        step = [call for call in before[ends[-1] + 1 if ends else 0 :] if call.role]
        step += [until] if until.role else []
        if not ends and not e.whole:  # the beginning of this step was overwritten
            return None
        counts.append(sum(b.role == FORWARD and (i == 0 or step[i - 1].role != FORWARD) for i, b in enumerate(step)))
    return counts[0], counts[1]
