"""What a rank did, on its own clock: on its GPU, or on its host's processor where a trace has no GPU."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from odcsim.fitting.events import BYTES, kind_of
from odcsim.observed.kernels import RankEvents, SpanRows
from odcsim.observed.spans import NONE, Spans, in_turn, united, within
from odcsim.timeline import Floats, Ints

STAGES = ("send-recv", "send", "recv")
AWAKE = 10_000.0  # microseconds that a thread may take to go on after what it waited for


@dataclass(frozen=True, slots=True)
class CalledOn:
    """A collective of one rank, in microseconds."""

    kind: str
    bytes: int
    ranks: int
    group: str
    sequence: int
    came: float
    done: float
    launched: float
    returned: float = 0.0  # on a processor, which moves some of the bytes before


@dataclass(frozen=True, slots=True, eq=False)
class WorkDone:
    """What a rank did, in microseconds. Spans of one kind do not overlap."""

    begin: Floats  # of kernels that compute, or operators
    end: Floats
    launched: Floats  # by the host
    names: Ints
    calls: tuple[CalledOn, ...]
    meeting: Spans  # where nothing but a collective may be under way
    met: Ints  # in `calls`
    stages: Spans = field(default=NONE)
    moves: Spans = field(default=NONE)
    moved: Floats = field(default_factory=lambda: np.zeros(0))  # when each move was launched
    moved_by: Floats = field(default_factory=lambda: np.zeros(0))  # when it had ended
    loading: Spans = field(default=NONE)
    collecting: Spans = field(default=NONE)
    known: bool = True  # when the host launched each
    behind: bool = True  # whether it is a device that follows its host


def on_gpu(events: RankEvents) -> WorkDone:
    begin, end, correlations, names = events.kernels.columns()
    started = _Launched(events)
    launched, share = started(correlations, begin)
    came, done, calling, places = events.collectives.columns()
    launches, _ = started(calling, came)
    notes = [events.notes[i] for i in places]
    # NCCL has one kernel for all that goes to one rank, and RCCL one for all: what the host asked for when it launched
    # each tells them apart.
    spoken = sorted(events.spoken)
    said = np.array([begin for begin, _, _ in spoken])
    kinds, place = [note.kind for note in notes], np.searchsorted(said, launches, side="right") - 1
    for i, (at, launch) in enumerate(zip(place.tolist(), launches.tolist(), strict=True)):
        if kinds[i] in ("send-recv", "") and at >= 0 and launch <= spoken[at][1]:
            kinds[i] = kind_of(spoken[at][2]) or kinds[i]
        kinds[i] = kinds[i] or "collective"
    calls = tuple(
        CalledOn(kind, n.bytes, n.ranks, n.group, n.sequence, a, b, c)
        for kind, n, a, b, c in zip(kinds, notes, came.tolist(), done.tolist(), launches.tolist(), strict=True)
    )
    staged = np.array([call.kind in STAGES for call in calls], bool)
    first, last, met = in_turn(came[~staged], done[~staged])
    copying, copied_by, which, _ = events.moves.columns()
    return WorkDone(
        begin, end, launched, names, calls, (first, last), np.flatnonzero(~staged)[met],
        stages=united(came[staged], done[staged]), moves=united(copying, copied_by),
        moved=started(which, copying)[0], moved_by=copied_by,
        loading=_of(events.loading, main_thread(events)), collecting=_of(events.collecting), known=share > 0.5,
    )  # fmt: skip


class _Launched:
    """When the host launched what has these numbers; where that is not known, when it began."""

    def __init__(self, events: RankEvents) -> None:
        self.begin, _, self.numbers, _ = events.launches.columns()
        order = np.argsort(self.numbers, kind="stable")
        self.begin, self.numbers = self.begin[order], self.numbers[order]

    def __call__(self, numbers: Ints, began: Floats) -> tuple[Floats, float]:
        if not len(self.numbers) or not len(numbers):
            return began, 0.0
        place = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        known = (self.numbers[place] == numbers) & (numbers >= 0)
        return np.where(known, np.minimum(self.begin[place], began), began), float(known.mean())


def on_host(events: RankEvents) -> WorkDone:
    """Operators of the main thread compute, but for those that call a collective themselves; where it shows no sign
    of life until a collective is done, it waited."""
    main = main_thread(events)
    begin, end, threads, names = events.operators.columns()
    mine = threads == main
    sides = np.array([side for call in events.calls for side in call[1:3]])
    calling = np.sort(sides[::2])
    nested = np.searchsorted(calling, end, side="left") - np.searchsorted(calling, begin, side="left")
    loading, collecting = _of(events.loading, main), _of(events.collecting)
    calls = _gloo_calls(events)
    inside = united(np.array([c.came for c in calls]), np.array([c.returned for c in calls]))
    computing = mine & (names >= 0) & (nested == 0) & (within(begin, loading) < 0) & (within(begin, inside) < 0)
    signs = [begin[mine], end[mine], *events.backward.columns()[:2], sides, *loading, *collecting]
    busy = united(begin[computing], end[computing])
    waits = _with_calls(_blocked(np.unique(np.concatenate(signs)), busy, calls, (loading, collecting)), calls)
    staged = np.array([calls[i].kind in STAGES for i in waits[2]], bool)
    return WorkDone(
        begin[computing], end[computing], begin[computing], names[computing], calls,
        (waits[0][~staged], waits[1][~staged]), waits[2][~staged], stages=(waits[0][staged], waits[1][staged]),
        loading=loading, collecting=collecting, behind=False,
    )  # fmt: skip


def main_thread(events: RankEvents) -> int:
    if events.steps:
        return events.steps[0][3]
    _, _, threads, names = events.operators.columns()
    return int(np.bincount(threads[names >= 0]).argmax()) if (names >= 0).any() else 0


def _of(rows: SpanRows, thread: int | None = None) -> Spans:
    """Of one thread or of all: what others load in time nobody waits for, and where one collects all stand still."""
    begin, end, threads, _ = rows.columns()
    here = threads == thread if thread is not None else np.full(len(begin), True)
    return united(begin[here], end[here])


_Waits = tuple[Floats, Floats, Ints]  # which call


def _blocked(signs: Floats, busy: Spans, calls: tuple[CalledOn, ...], awake: tuple[Spans, ...]) -> _Waits:
    """Between two signs of life in which a collective was done, and nothing else went on: until then the thread
    waited for it."""
    order = sorted(range(len(calls)), key=lambda i: calls[i].done)
    done = np.array([calls[i].done for i in order])
    place = np.searchsorted(signs, done, side="right")
    kept = (place > 0) & (place < len(signs))
    for spans in (busy, *awake):
        kept &= within(done, spans) < 0
    which, done, place = np.array(order, np.int64)[kept], done[kept], place[kept]
    if not len(which):
        return *NONE, which
    low, high = signs[place - 1], signs[place]
    last = np.append(low[1:] != low[:-1], True)  # of those that were done in one gap
    until = np.where(last & (high - done <= AWAKE), high, done)
    begin, end, places = in_turn(low, until)
    return begin, end, which[places]


def _with_calls(waits: _Waits, calls: tuple[CalledOn, ...]) -> _Waits:
    """And what the rank did of a collective when it called it."""
    begin = np.append(waits[0], [c.came for c in calls])
    end = np.append(waits[1], [min(c.returned, c.done) for c in calls])
    which = np.append(waits[2], np.arange(len(calls)))
    order = np.argsort(begin, kind="stable")
    begin, end, places = in_turn(begin[order], end[order])
    return begin, end, which[order][places]


def _gloo_calls(events: RankEvents) -> tuple[CalledOn, ...]:
    """What the rank asked for, with when gloo was done with it: the first of its kind and size that began after."""
    waiting: _Waiting = defaultdict(list)
    for name, begin, end, elements, dtype in sorted(events.gloo, key=lambda g: -g[1]):
        waiting[kind_of(name), elements].append((begin, end, dtype))
    calls = []
    for name, begin, end, sizes in sorted(events.calls, key=lambda c: c[1]):
        kind = kind_of(name) if name.startswith("c10d::") else ""
        ran = _first(waiting, kind, sizes or (0,), begin) if kind else None
        if ran is not None:
            size = BYTES.get(ran[2].lower(), 0) * max(sizes, default=0)
            calls.append(CalledOn(kind, size, 0, "", -1, begin, ran[1], begin, end))
    return tuple(calls)


_Waiting = dict[tuple[str, int], list[tuple[float, float, str]]]


def _first(waiting: _Waiting, kind: str, sizes: tuple[int, ...], since: float) -> tuple[float, float, str] | None:
    best: list[tuple[float, float, str]] | None = None
    for ran in dict.fromkeys((kind, "all-reduce" if kind == "reduce-scatter" else kind)):  # as gloo does it
        for size in sizes:
            queue = waiting.get((ran, size), [])
            while queue and queue[-1][0] < since:
                queue.pop()
            if queue and (best is None or queue[-1][0] < best[-1][0]):
                best = queue
    return best.pop() if best else None
