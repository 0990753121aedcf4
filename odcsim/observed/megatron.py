"""One step of Megatron's operations: what each rank did, where ranks met, and the microbatches of its pipeline."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.observed.operations import Operations, track_of
from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, Track
from odcsim.timeline import Ints

COMPUTES, UPDATE = ("forward-compute", "backward-compute"), "optimizer"
# What an operation is, by a part of its name; the first that is in it.
KINDS = {
    "-compute": Doing.COMPUTE,
    "-send": Doing.STAGE,
    "-recv": Doing.STAGE,
    "-all-gather": Doing.MEETING,
    "-reduce-scatter": Doing.MEETING,
    "-all-reduce": Doing.MEETING,
    "clip-main-grad": Doing.MEETING,  # all ranks sum a norm
    UPDATE: Doing.COMPUTE,
    "gc": Doing.COLLECTOR,
    "data": Doing.LOADER,
}
COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce")
AT_ONCE = 0.01  # seconds: ranks that go on within them have met
LATE = 10 * AT_ONCE  # by how much they must have come apart for it


def kind_of(name: str, where: str) -> Doing:
    for part, kind in KINDS.items():
        if part in name:
            return kind
    known = ", ".join((*COMPUTES, "backward-send", "grads-reduce-scatter", UPDATE))
    raise InputError(f"an operation is {name[:40]!r}", where=where, fix=f"expected Megatron's: {known}, ...")


def is_whole(rows: Operations, replicas: Mapping[int, int]) -> bool:
    """Whether all ranks are in a step, and those of one replica have as many passes of the same microbatches."""
    passes = rows.only(np.isin(rows.names, COMPUTES)[rows.codes] & (rows.end > rows.begin))
    ran: dict[int, Counter[tuple[int, int]]] = {rank: Counter() for rank in replicas}
    columns = (passes.ranks, passes.codes, passes.microbatches)
    for rank, code, microbatch in zip(*(column.tolist() for column in columns), strict=True):
        ran[rank][code, microbatch] += 1
    first: dict[int, Counter[tuple[int, int]]] = {}
    alike = all(first.setdefault(replicas[rank], every) == every for rank, every in ran.items())
    both = all(len(every) == len(COMPUTES) * len({m for _, m in every}) for every in first.values())
    counts = {count for every in first.values() for count in every.values()}
    return alike and both and len(counts) == 1 and len(np.unique(rows.ranks)) == len(replicas)


def step_of(
    number: int, rows: Operations, kinds: Ints, stages: Mapping[int, int], replicas: Mapping[int, int], alone: bool
) -> RanStep:
    """Rows of one step, in the order of ranks and beginnings; `kinds` of each row. `alone`: the other stages were not
    seen, and where nothing is told a rank may as well wait for them."""
    span = float(rows.begin.min()), float(rows.end.max())
    passes = np.isin(rows.names, COMPUTES)[rows.codes]
    of, seconds = np.where(passes, rows.microbatches, NO), rows.end - rows.begin
    meetings, places = _told(rows, kinds, stages, replicas)
    waits, unseen = _untold(rows, kinds, passes, stages, len(meetings))
    tracks: list[Track] = []
    ran: list[RanMicrobatch] = []
    starts = np.flatnonzero(np.r_[True, rows.ranks[1:] != rows.ranks[:-1]])
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(rows.ranks)], strict=True):
        rank, mine = int(rows.ranks[low]), slice(low, high)
        held = of[mine] >= 0
        sums = np.bincount(of[mine][held], seconds[mine][held])
        ran += [RanMicrobatch(rank, m, s) for m, s in enumerate(sums.tolist()) if s]
        since, until, met = waits.get(rank, (span[0], span[0], NO))
        begin, end = np.r_[rows.begin[mine], since], np.r_[rows.end[mine], until]
        columns = np.r_[kinds[mine], Doing.MEETING], np.r_[places[mine], met], np.r_[of[mine], NO]
        tracks.append(track_of(rank, begin, end, *columns, span, Doing.STAGE if alone else Doing.HOST))
    return RanStep(number, span[1] - span[0], tuple(ran), tuple(tracks), (*meetings, *unseen))


def _told(
    rows: Operations, kinds: Ints, stages: Mapping[int, int], replicas: Mapping[int, int]
) -> tuple[list[Met], Ints]:
    """Collectives, and of each row the number of its own."""
    places = np.full(len(rows.ranks), NO)
    groups: dict[tuple[str, int, object], list[int]] = {}
    for row in np.flatnonzero(kinds == Doing.MEETING).tolist():
        name, rank = rows.names[rows.codes[row]], int(rows.ranks[row])
        who = _group(name, stages[rank], replicas[rank])
        groups.setdefault((name, int(rows.numbers[row]), who), []).append(row)
    meetings: list[Met] = []
    for (name, _, _), members in groups.items():
        came = dict(zip(rows.ranks[members].tolist(), rows.begin[members].tolist(), strict=True))
        places[members] = len(meetings)
        kind = next((kind for kind in COLLECTIVES if kind in name), "all-reduce")
        ranks = max(len(came), 2 if len(stages) == 1 else 1)  # whoever is alone met somebody
        meetings.append(Met(kind, 0, ranks, came, float(rows.end[members].max())))
    return meetings, places


def _group(name: str, stage: int, replica: int) -> object:
    """What those who meet have in common."""
    if "clip" in name:
        return None
    if "embedding" in name:  # of the first stage and the last
        return replica
    return (replica, stage) if "layernorm" in name else stage


def _untold(
    rows: Operations, kinds: Ints, passes: NDArray[np.bool_], stages: Mapping[int, int], first: int
) -> tuple[dict[int, tuple[float, float, int]], list[Met]]:
    """Meetings that nobody wrote down: a stage's ranks are done with their passes at different times and go on at
    once, as where they average their losses. By rank since when, until when, and in which; and the meetings."""
    gaps: dict[int, tuple[float, float]] = {}
    for rank in stages:
        mine = rows.ranks == rank
        last = float(rows.end[mine & passes].max(initial=-np.inf))
        after = rows.begin[mine & (rows.begin >= last) & (kinds == Doing.MEETING)]
        if np.isfinite(last) and len(after):
            gaps[rank] = last, float(after.min())
    waits: dict[int, tuple[float, float, int]] = {}
    meetings: list[Met] = []
    for stage in sorted(set(stages.values())):
        here = {rank for rank in gaps if stages[rank] == stage} - set(waits)
        done, on = np.array([gaps[rank] for rank in sorted(here)]).reshape(-1, 2).T
        if len(here) < 2 or np.ptp(on) > AT_ONCE or np.ptp(done) < LATE:
            continue
        for rank in set(gaps) - here - set(waits):  # one of another stage that waited until then
            if gaps[rank][1] - gaps[rank][0] > AT_ONCE and abs(gaps[rank][1] - on.max()) <= AT_ONCE:
                here.add(rank)
        waits |= {rank: (*gaps[rank], first + len(meetings)) for rank in here}
        came = {rank: gaps[rank][0] for rank in sorted(here)}
        meetings.append(Met("all-reduce", 0, len(came), came, float(on.max())))
    return waits, meetings
