"""Which calls of several ranks are one meeting, and how far their clocks are apart: collectives end for all at once."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from odcsim.observed.ranks import OwnTrace
from odcsim.timeline import Floats

TOGETHER = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "barrier")  # nobody leaves before all came
APART = 1000.0  # microseconds by which somebody left before another came, for it to be no meeting
FEWEST = 8  # meetings that tell whether ranks are of one run
NEAR = 100.0  # microseconds that clocks may be apart after all
LIKE = ("told", "kind", "step", "bytes", "ranks")  # what the key of a meeting that order tells begins with
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Matched:
    """Of each rank, which of its calls belongs to which meeting."""

    meetings: Mapping[Key, Mapping[int, int]]  # rank: its call
    of: Mapping[tuple[int, int], Key] = field(default_factory=dict)  # of a rank and its call
    lonely: int = 0  # calls that no other rank's belongs to, though others were seen


def match(traces: Mapping[int, OwnTrace], steps: Sequence[int]) -> Matched:
    """By group and number in it, where torch notes them; else by kind, size and order in the step, where all ranks
    have as many."""
    meetings: dict[Key, dict[int, int]] = defaultdict(dict)
    counts: dict[Key, dict[int, int]] = defaultdict(dict)
    for rank, trace in traces.items():
        for step in trace.steps:
            for place in step.calls.tolist() if step.number in steps else ():
                call = trace.calls[place]
                numbered = call.sequence >= 0 and call.group
                key: Key = (call.group, call.sequence) if numbered else (step.number, call.bytes, call.ranks)
                key = (bool(numbered), call.kind, *key)
                number = counts[key].setdefault(rank, 0)
                counts[key][rank] += 1
                meetings[*key, number][rank] = place
    for key, calls in list(meetings.items()):
        several = counts[key[:-1]].values()
        sizes = {traces[r].calls[place].ranks for r, place in calls.items()}
        if len(calls) > 1 and ((not key[0] and len(set(several)) > 1) or len(calls) > max(sizes) > 0):
            del meetings[key]
            meetings |= {(*key, rank): {rank: place} for rank, place in calls.items()}
    return Matched(meetings)


def rematch(traces: Mapping[int, OwnTrace], met: Matched, ahead: Mapping[int, float]) -> Matched:
    """Where a trace has lost some, order misleads: those that one rank left before another came are matched anew, by
    when they were done."""
    meetings, lonely = dict[Key, Mapping[int, int]](), dict[Key, list[tuple[float, int, int]]]()
    for key, calls in met.meetings.items():
        every = [(traces[r].calls[place], ahead[r]) for r, place in calls.items()]
        if key[0] or every[0][0].kind not in TOGETHER:
            meetings[key] = calls
        elif len(every) == 1 or min(c.done + a for c, a in every) + NEAR < max(c.came + a for c, a in every):
            ends = [(traces[r].calls[place].done + ahead[r], r, place) for r, place in calls.items()]
            lonely.setdefault(key[: len(LIKE)], []).extend(ends)
        else:
            meetings[key] = calls
    for like, ends in lonely.items():
        groups, last = list[dict[int, int]](), -np.inf
        for end, rank, place in sorted(ends):
            if end - last > NEAR or rank in groups[-1]:
                groups.append({})
            groups[-1][rank] = place
            last = end
        meetings |= {(*like, "by end", i): calls for i, calls in enumerate(groups)}
    alone = sum(len(calls) == 1 for calls in meetings.values()) if len(traces) > 1 else 0
    return Matched(meetings, {pair: key for key, calls in meetings.items() for pair in calls.items()}, alone)


def strangers(
    traces: Mapping[int, OwnTrace], met: Matched, ahead: Mapping[int, float], world: int
) -> tuple[int, int] | None:
    """Two ranks that are not of one run: of the meetings of all ranks they have less than half in common."""
    first, *others = traces
    every, common = dict.fromkeys(traces, 0), dict.fromkeys(traces, 0)
    for calls in met.meetings.values():
        of = {rank: traces[rank].calls[place] for rank, place in calls.items()}
        if any(call.kind not in TOGETHER or (call.ranks or world) < world for call in of.values()):
            continue
        for rank, call in of.items():
            every[rank] += 1
            pair = [(call, ahead[rank]), (of.get(first, call), ahead[first])]
            left, came = min(c.done + a for c, a in pair), max(c.came + a for c, a in pair)
            common[rank] += first in of and came <= left + APART
    for rank in others:
        if 2 * common[rank] < (several := min(every[first], every[rank])) and several >= FEWEST:
            return first, rank
    return None


def offsets(traces: Mapping[int, OwnTrace], met: Matched) -> tuple[dict[int, float], tuple[int, ...]]:
    """Microseconds to add to each rank's clock, and the ranks that met nobody whose clock is known."""
    first = min(traces)
    ahead = {r: (t.base - traces[first].base) / 1e3 for r, t in traces.items()}
    known, left = {first}, set(traces) - {first}
    while left and (shared := _shared(traces, met, ahead, known, left)):
        machines = {traces[r].machine for r in known}
        for rank, meetings in shared.items():
            machine = traces[rank].machine
            ahead[rank] += _offset(np.array(meetings), machine in machines and machine != "")
        known |= shared.keys()
        left -= shared.keys()
    return ahead, tuple(sorted(left))


def _shared(
    traces: Mapping[int, OwnTrace], met: Matched, ahead: Mapping[int, float], known: set[int], left: set[int]
) -> dict[int, list[tuple[float, float, float]]]:
    """Of each meeting with those whose clocks are known: by how much they ended later than the rank, and the least and
    the most that its clock may be moved so that nobody left before all came."""
    shared: dict[int, list[tuple[float, float, float]]] = {}
    for calls in met.meetings.values():
        others = [(traces[r].calls[place], ahead[r]) for r, place in calls.items() if r in known]
        if not others or len(others) == len(calls):
            continue
        done = [call.done + a for call, a in others]
        mean, soonest, last = sum(done) / len(done), min(done), max(call.came + a for call, a in others)
        for rank in calls.keys() & left:
            own, shift = traces[rank].calls[calls[rank]], ahead[rank]
            least, most = last - own.done - shift, soonest - own.came - shift
            bounds = (least, most) if own.kind in TOGETHER else (-np.inf, np.inf)
            shared.setdefault(rank, []).append((mean - own.done - shift, *bounds))
    return shared


def _offset(shared: Floats, together: bool) -> float:
    """The median of how far ends are apart, where that is more than half of them differ by, and as far as may be. On
    one machine clocks are the same, unless somebody would then leave before all came."""
    later, least, most = shared[:, 0], shared[:, 1].max(), shared[:, 2].min()
    if together and least <= NEAR and most >= -NEAR:
        return 0.0
    middle = float(np.median(later))
    if abs(middle) <= np.median(np.abs(later - middle)):
        middle = 0.0
    return min(max(middle, float(least)), float(most)) if least <= most else middle
