"""Steps and microbatches: where they begin and end for the host that launches, and so for the device that follows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.fitting.events import numbered
from odcsim.observed.kernels import OUTERMOST, Embedded, RankEvents
from odcsim.observed.rank_work import WorkDone
from odcsim.observed.spans import Spans, united
from odcsim.timeline import Floats, Ints

BACKWARD = ("embedding_backward", "embedding_dense_backward", "embeddingbackward")  # the last kernel of a backward
FORWARD = 8  # operators between two backwards that make a forward


@dataclass(frozen=True, slots=True)
class Window:
    """A step, in microseconds: for the host, and for the device."""

    number: int
    host: tuple[float, float]
    device: tuple[float, float]


@dataclass(frozen=True, slots=True)
class MicrobatchWindow:
    """When the host launched it, and what it looked up; 0 tokens: not known."""

    begin: float
    turned: float  # when its first backward began
    end: float
    computed: int = 0
    samples: int = 0


def steps(events: RankEvents, did: WorkDone) -> tuple[Window, ...]:
    """By the profiler's own ranges; else cut by the optimizer's; else the whole trace is one."""
    ranges = _ranges(events, did)
    if not ranges:
        return ()
    # When things were launched, and by when all that was launched until then has ended.
    launched = np.concatenate((did.launched, [c.launched for c in did.calls], did.moved))
    order = np.argsort(launched, kind="stable")
    ended = np.concatenate((did.end, [c.done for c in did.calls], did.moved_by))[order]
    launched, ended = launched[order], np.maximum.accumulate(ended)

    def over(moment: float) -> float:
        """When the device has done what was launched before."""
        place = int(np.searchsorted(launched, moment, side="left")) if did.behind else 0
        return max(moment, float(ended[place - 1])) if place else moment

    begins = [over(begin) for _, begin, _ in ranges]
    windows = []
    for i, (number, begin, end) in enumerate(ranges):
        follows = i + 1 < len(ranges) and ranges[i + 1][0] == number + 1
        last = begins[i + 1] if follows else min(over(end), begins[i + 1] if i + 1 < len(ranges) else np.inf)
        if begins[i] < last:
            windows.append(Window(number, (begin, ranges[i + 1][1] if follows else end), (begins[i], float(last))))
    return tuple(windows)


def _ranges(events: RankEvents, did: WorkDone) -> list[tuple[int, float, float]]:
    marked = events.steps if events.steps and (did.known or not events.device_steps) else events.device_steps
    spans: dict[int, tuple[float, float]] = {}
    for name, begin, end, _ in marked:  # of several streams, each has its own
        low, high = spans.get(number := numbered(name, events.path), (begin, end))
        spans[number] = min(low, begin), max(high, end)
    if spans:
        return sorted(((n, *span) for n, span in spans.items()), key=lambda s: s[1])
    sides = did.begin, did.end, *did.meeting
    if not any(map(len, sides)):
        return []
    marks = [e.at for e in events.embedded] + [b for roots in events.roots.values() for b, _ in roots]
    starts = (*sides, did.launched, did.loading[0], np.array(marks))
    low, high = min(s.min() for s in starts if len(s)), max(s.max() for s in sides if len(s))
    # Where an optimizer's step ends, and a backward follows before the next one begins.
    updates, backward, cuts = sorted(events.updates or events.device_updates), events.backward.columns()[0], []
    for i, (_, end) in enumerate(updates):
        following = updates[i + 1][0] if i + 1 < len(updates) else np.inf
        between = np.searchsorted(backward, following) - np.searchsorted(backward, end)
        if low < end < high and (between or not len(backward) or following == np.inf):
            cuts.append(end)
    ends = cuts or [high]
    return [(i, float(begin), float(end)) for i, (begin, end) in enumerate(zip([low, *ends], ends, strict=False))]


def microbatches(events: RankEvents, did: WorkDone, window: Window) -> tuple[MicrobatchWindow, ...]:
    """Of a step. By the roots' annotations; else by what is looked up; else where a forward begins after a backward."""
    low, high = window.host
    updates = [begin for begin, _ in events.updates if low <= begin < high]
    high = min(updates, default=high)
    backward, over = united(*events.backward.columns()[:2])
    here = slice(*np.searchsorted(backward, (low, high)))
    begins = _begins(events, did, (low, high), (backward[here], over[here]))
    fed = events.fed.columns()
    windows = []
    for begin, end in zip(begins, [*begins[1:], high], strict=True):
        inside = slice(*np.searchsorted(backward, (begin, end)))
        ended = float(over[inside][-1]) if inside.stop > inside.start else end
        first = float(backward[inside][0]) if inside.stop > inside.start else end
        tokens, samples = _looked_up(events.embedded, begin, first) or _fed(fed, begin, first)
        windows.append(MicrobatchWindow(begin, first, min(ended, end), tokens, samples))
    return tuple(windows)


def _begins(events: RankEvents, did: WorkDone, step: tuple[float, float], backward: Spans) -> list[float]:
    low, high = step
    if roots := _roots(events, step):
        return _anew(roots, backward[0]) if len(did.stages[0]) else _passed_back(roots, backward[0])
    if looked := [e.at for e in events.embedded if low <= e.at < high]:
        return _anew(looked, backward[0])
    if len(backward[0]):  # where a forward lies between two
        at, _, _, numbers = events.operators.columns()
        at = at[numbers >= 0]
        gaps = np.searchsorted(at, backward[0][1:]) - np.searchsorted(at, backward[1][:-1])
        return [low, *backward[1][:-1][gaps >= FORWARD].tolist()]
    names = [i for name, i in events.names.known.items() if any(b in name.lower() for b in BACKWARD)]
    last = np.flatnonzero(np.isin(did.names, names) & (did.launched >= low) & (did.launched < high))
    later = did.launched[last[last + 1 < len(did.launched)] + 1].tolist()
    return [low, *(b for b in later if low < b < high)][: max(1, len(last))]


def forwards_alone(events: RankEvents, did: WorkDone, window: Window) -> int:
    """How many forwards of a step had no backward before the next one, where others had."""
    roots = [] if len(did.stages[0]) else _roots(events, window.host)
    backward = events.backward.columns()[0]
    return len(roots) - len(_passed_back(roots, backward[: np.searchsorted(backward, window.host[1])]))


def _roots(events: RankEvents, step: tuple[float, float]) -> list[float]:
    """When those begin that lie in no other of their name; of the first name that there is."""
    for name in OUTERMOST:
        roots, last = list[float](), -np.inf
        for begin, end in sorted(events.roots.get(name, ())):
            if begin >= last and step[0] <= begin < step[1]:
                roots.append(begin)
            last = max(last, end)
        if roots:
            return roots
    return []


def _passed_back(begins: list[float], backward: Floats) -> list[float]:
    """Those that a backward follows before the next: others evaluate, or are of a model that is not trained."""
    passed = np.searchsorted(backward, [*begins, np.inf])
    return [b for i, b in enumerate(begins) if passed[i + 1] > passed[i]] or begins


def _anew(begins: Sequence[float], backward: Floats) -> list[float]:
    """Those that come after a backward, and the first."""
    if not len(backward):
        return list(begins)
    passed = np.searchsorted(backward, begins)
    return [b for i, b in enumerate(begins) if i == 0 or passed[i] > passed[i - 1]]


def _looked_up(embedded: Sequence[Embedded], begin: float, end: float) -> tuple[int, int] | None:
    """Tokens and samples that the last look-up of the forward in the largest table had: those before it may be of
    another model's forward, and smaller tables hold places and kinds."""
    looked = [e for e in embedded if begin <= e.at < end]
    if not looked:
        return None
    rows = max(e.rows for e in looked)
    last = [e for e in looked if e.rows == rows][-1]
    return last.samples * last.tokens, last.samples


def _fed(fed: tuple[Floats, Floats, Ints, Ints], begin: float, end: float) -> tuple[int, int]:
    """Of a model that looks nothing up: what most of its linear layers were given; (0, 0) where most differ."""
    at, _, samples, tokens = fed
    here = slice(*np.searchsorted(at, (begin, end)))
    most = Counter(zip(samples[here].tolist(), tokens[here].tolist(), strict=True)).most_common(1)
    if not most or 2 * most[0][1] <= len(at[here]):
        return 0, 0
    return most[0][0][0] * most[0][0][1], most[0][0][0]
