"""A rank's pieces through all steps as one line, so that what it did in any window can be looked up.

A rank in a meeting waits until the last rank comes. From then on bytes move: a transfer. But a rank that came later and
computes while they move loses nothing by them, and the meeting is where it is since that rank is late. So of its
compute there as many seconds as it came later are waiting for it, too; ranks that come together wait for bytes alone.
Where only some of the ranks that met were seen, the last may be one that was not: what comes before the shortest
transfer of its like is untold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from odcsim.decide.diagnosis.microbatches import Rows
from odcsim.observed.run import NO, Doing, RanStep, Track
from odcsim.timeline import Floats, Ints

# What a moment of a line is. Compute is told apart by why it takes so long: what there was to do, a device that is not
# as fast as the others, or neither.
EVEN, PACE, CHANCE, TRANSFER, LOADER, COLLECTOR, HOST, EDGE, UNTOLD, WAIT = STATES = range(10)
_STATE = {
    Doing.COMPUTE: EVEN,
    Doing.MEETING: UNTOLD,  # in a meeting that nobody knows
    Doing.TRANSFER: TRANSFER,
    Doing.STAGE: UNTOLD,
    Doing.LOADER: LOADER,
    Doing.COLLECTOR: COLLECTOR,
    Doing.HOST: HOST,
    Doing.EDGE: EDGE,
}
_STATE_OF = np.array([_STATE[kind] for kind in Doing])
MOVED, TWICE = ("all-gather", "reduce-scatter"), 2.0  # kinds that move as much, and how far apart they may be
NEAR = 1e-9  # of the times: rounding
PIECES = 500_000  # of all ranks, in one stretch of steps
Work = tuple[Floats, Floats]  # moments, and how much a rank has computed up to each


@dataclass(frozen=True, slots=True)
class SeenMeetings:
    """The meetings of several steps, one step's after the other's."""

    last: Ints  # the rank that came last, of those that were seen
    came: Floats = field(repr=False)  # when it did
    begun: Floats = field(repr=False)  # when bytes began to move: later, where somebody who was not seen came later
    whole: Rows = field(repr=False)  # all that met were seen
    first: Ints = field(repr=False)  # of each step
    arrived: Mapping[int, Floats] = field(repr=False)  # when each rank came, or not a number


@dataclass(frozen=True, slots=True)
class RankLine:
    """One rank: what it was at every moment."""

    rank: int
    edges: Floats = field(repr=False)
    sums: Floats = field(repr=False)  # [state, edge]: seconds up to there
    states: Ints = field(repr=False)  # of pieces; compute is EVEN
    rows: Ints = field(repr=False)  # of the table of microbatches, or NO
    steps: Ints = field(repr=False)  # places in SeenRun.steps; NO: between two steps
    last: Ints = field(repr=False)  # of pieces that wait, whom they wait for

    @property
    def seconds(self) -> Floats:
        """[state, piece]"""
        return np.diff(self.sums, axis=1)

    def at(self, times: Floats) -> Floats:
        """Sums at any times [state, time]."""
        places = np.clip(np.searchsorted(self.edges, times, "right") - 1, 0, max(len(self.states) - 1, 0))
        if not len(self.states):
            return np.zeros((len(STATES), len(times)))
        long = self.edges[places + 1] - self.edges[places]
        inside = np.clip(times - self.edges[places], 0.0, long)
        part = np.divide(inside, long, out=np.zeros_like(inside), where=long > 0)
        sums: Floats = self.sums[:, places] + part * (self.sums[:, places + 1] - self.sums[:, places])
        return sums


def meetings_of(steps: Sequence[RanStep], shortest: dict[tuple[str, int, int], float]) -> SeenMeetings:
    every = [met for step in steps for met in step.meetings]
    counts = [len(step.meetings) for step in steps]
    last = np.array([max(met.came, key=met.came.__getitem__, default=NO) for met in every], dtype=np.int64)
    came = np.array([max(met.came.values(), default=-np.inf) for met in every], dtype=np.float64)
    complete = np.array([len(met.came) >= met.ranks for met in every], dtype=np.bool_)
    moved = np.array([met.done - shortest[met.alike] for met in every], dtype=np.float64)
    begun = np.where(complete, came, np.maximum(came, moved))
    first = np.cumsum(counts, dtype=np.int64) - np.array(counts, dtype=np.int64)
    ranks = sorted({rank for met in every for rank in met.came})
    arrived = {rank: np.array([met.came.get(rank, np.nan) for met in every]) for rank in ranks}
    return SeenMeetings(last, came, begun, complete, first, arrived)


def shortest_of(steps: Iterable[RanStep]) -> dict[tuple[str, int, int], float]:
    """Of meetings alike the shortest transfer: nobody was waited for in it. Where somebody always was whom nobody saw,
    other kinds tell: those that move all bytes or their sums take about as long, at most `TWICE`."""
    shortest: dict[tuple[str, int, int], float] = {}
    for step in steps:
        for met in step.meetings:
            took = max(met.done - max(met.came.values(), default=met.done), 0.0)
            shortest[met.alike] = min(shortest.get(met.alike, np.inf), took)
    bounded = {}
    for (kind, size, ranks), took in shortest.items():
        others = [
            TWICE * other * max(1.0, size / of if of else 1.0)
            for (name, of, among), other in shortest.items()
            if {kind, name} <= {*MOVED} and among == ranks and bool(of) == bool(size)
        ]
        bounded[kind, size, ranks] = min([took, *others])
    return bounded


def stretches(steps: Sequence[RanStep]) -> list[tuple[int, int]]:
    """Steps that follow each other on every rank, as the first of them and the one behind the last. No more than fill
    one's memory, where all ranks are done with a step before any begins the next: nobody waits across that."""
    firsts, ends, pieces = [0], dict[int, float](), 0
    for place, step in enumerate(steps):
        begins = {track.rank: float(track.edges[0]) for track in step.tracks}
        known = [(begin, ends[rank]) for rank, begin in begins.items() if rank in ends]
        early = any(begin < end - NEAR * max(abs(begin), abs(end)) for begin, end in known)
        apart = pieces >= PIECES and min(begins.values(), default=-np.inf) >= max(ends.values(), default=np.inf)
        if apart or early:
            firsts.append(place)
            ends, pieces = {}, 0
        ends |= {track.rank: float(track.edges[-1]) for track in step.tracks}
        pieces += sum(len(track.kinds) for track in step.tracks)
    return list(zip(firsts, [*firsts[1:], len(steps)], strict=True))


def line_of(
    rank: int,
    tracks: Sequence[tuple[int, Track]],
    met: SeenMeetings,
    first: int,
    work: Mapping[int, Work],
    rows: dict[tuple[int, int], Ints],
    split: Floats,
) -> RankLine:
    """`tracks`: with the place of their step, of which `first` is the first in `met`. `work`: of every rank. `rows`: of
    the table of microbatches, by step and rank. `split`: [EVEN to CHANCE, row], the last row that of no microbatch."""
    pieces = [_pieces(place, track, met.first[place - first], rows.get((place, rank))) for place, track in tracks]
    starts, ends, kinds, meetings, numbers, places = (np.concatenate(of) for of in zip(*_bridged(pieces), strict=True))
    edges = np.maximum.accumulate(np.append(starts, ends[-1:]))
    starts, ends = edges[:-1], edges[1:]
    until, begun, whom = ends.copy(), ends.copy(), np.full(len(ends), NO)
    inside = np.flatnonzero((kinds == Doing.MEETING) & (meetings >= 0))
    of = meetings[inside]
    whom[inside] = met.last[of]
    own = (met.last[of] == rank) | (met.last[of] == NO)
    came = np.clip(met.came[of], starts[inside], ends[inside])
    hidden = _hidden(rank, met, of, came, ends[inside], work) * met.whole[of]
    until[inside] = np.where(own, starts[inside], np.minimum(came + hidden, ends[inside]))
    begun[inside] = np.clip(met.begun[of], until[inside], ends[inside])
    begun[inside[met.last[of] == NO]] = ends[inside[met.last[of] == NO]]
    known = np.isin(whom, list(work))
    states = np.stack([_STATE_OF[kinds]] * 3, axis=1)
    states[inside, 0], states[inside, 1], states[inside, 2] = np.where(known[inside], WAIT, UNTOLD), UNTOLD, TRANSFER
    # Each piece in up to three, those of no length left out.
    bounds = np.stack([starts, until, begun, ends], axis=1)
    seconds = np.diff(bounds, axis=1)
    long = seconds > 0
    each = np.nonzero(long)[0]
    state, lasted = states[long], seconds[long]
    sums = np.zeros((len(STATES), len(lasted) + 1))
    for one in STATES[TRANSFER:]:
        sums[one, 1:] = np.cumsum(np.where(state == one, lasted, 0.0))
    computes = np.where(state == EVEN, lasted, 0.0)
    for one in (EVEN, PACE, CHANCE):
        sums[one, 1:] = np.cumsum(computes * split[one, numbers[each]])
    edges = np.append(bounds[:, :3][long], bounds[-1:, 3])
    return RankLine(rank, edges, sums, state, numbers[each], places[each], whom[each])


def work_of(tracks: Iterable[Track]) -> Work:
    """When a rank computes, in any of its steps."""
    edges, sums, total = [np.zeros(0)], [np.zeros(0)], 0.0
    for track in tracks:
        computed = np.append(0.0, np.cumsum(np.diff(track.edges) * (track.kinds == Doing.COMPUTE)))
        edges.append(track.edges)
        sums.append(total + computed)
        total += float(computed[-1])
    return np.maximum.accumulate(np.concatenate(edges)), np.concatenate(sums)


def _hidden(rank: int, met: SeenMeetings, of: Ints, since: Floats, until: Floats, work: Mapping[int, Work]) -> Floats:
    """Seconds for which a rank that came later than this one computes, but no more than it came later."""
    hidden = np.zeros(len(of))
    if rank not in met.arrived:
        return hidden
    came = met.arrived[rank][of]
    for other, computed in work.items():
        late = met.arrived[other][of] - came if other in met.arrived else hidden
        here = np.flatnonzero(late > hidden)
        low, high = (np.interp(times[here], *computed) for times in (since, until))
        hidden[here] = np.maximum(hidden[here], np.minimum(high - low, late[here]))
    return hidden


_Columns = tuple[Floats, Floats, Ints, Ints, Ints, Ints]


def _pieces(place: int, track: Track, first: int, rows: Ints | None) -> _Columns:
    meetings = np.where(track.meetings >= 0, track.meetings + first, NO)
    numbers = np.full(len(track.kinds), NO)
    if rows is not None:
        inside = (track.microbatches >= 0) & (track.microbatches < len(rows))
        numbers[inside] = rows[track.microbatches[inside]]
    steps = np.full(len(track.kinds), place)
    return track.edges[:-1], track.edges[1:], np.asarray(track.kinds), meetings, numbers, steps


def _bridged(pieces: Sequence[_Columns]) -> list[_Columns]:
    """With what lies between two steps, which is of neither."""
    bridged: list[_Columns] = []
    end = None
    for one in pieces:
        if not len(one[0]):
            continue
        if end is not None and one[0][0] > end:
            no = np.array([NO])
            bridged.append((np.array([end]), one[0][:1], np.array([Doing.EDGE]), no, no, no))
        bridged.append(one)
        end = one[1][-1]
    nothing = np.empty(0, dtype=np.int64)
    return bridged or [(np.empty(0), np.empty(0), nothing, nothing, nothing, nothing)]
