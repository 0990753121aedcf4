"""Why ranks waited: what the last to come did instead, since whoever waits for it last waited before.

Over any window the seconds of a line's states come to the window's length. So what a rank waits is by how much the
last to come was longer in some states, less what it was shorter in others, and the wait is shared over those in which
it was longer. Where it had waited itself, its own waits' causes are those of this one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from odcsim.decide.diagnosis.lines import EDGE, STATES, UNTOLD, WAIT, RankLine
from odcsim.decide.diagnosis.outcome import PARTS
from odcsim.observed.run import NO
from odcsim.timeline import Floats, Ints

NAMES = tuple(PARTS)
# What a state is called where others wait for it.
CAUSE = ("lengths", "device", "untold", "transfer", "loader", "collector", "launch", "edges", "untold")
_TO_PARTS = np.zeros((len(NAMES), WAIT))
for _state, _name in enumerate(CAUSE):
    _TO_PARTS[NAMES.index(_name), _state] = 1.0


@dataclass(frozen=True, slots=True)
class SeenWaits:
    """Every wait of a stretch of steps, in order of when it ended."""

    ranks: Ints
    steps: Ints
    blamed: Ints  # the rank that came last, or whom that one had waited for
    rows: Ints  # its microbatch in the table, or NO: not told apart
    blamed_steps: Ints
    seconds: Floats
    ends: Floats = field(repr=False)
    parts: Floats = field(repr=False)  # [part, wait]: seconds


def waits_of(lines: Mapping[int, RankLine], computed: Floats) -> SeenWaits:
    """`computed`: seconds of every microbatch of the table."""
    columns = [_of_line(line) for line in lines.values()]
    ranks, steps, last, begins, since, ends = (np.concatenate(of) for of in zip(*columns, strict=True))
    order = np.argsort(ends, kind="stable")
    ranks, steps, last, begins, since, ends = (of[order] for of in (ranks, steps, last, begins, since, ends))
    begun = np.minimum(_begun(lines, ranks, steps), _begun(lines, last, steps))
    since = np.minimum(np.maximum(np.maximum(since, begun), _last_met(ranks, last, ends)), begins)
    more = np.zeros((len(STATES), len(ends)))
    rows, blamed_steps = np.full(len(ends), NO), steps.copy()
    for rank in np.unique(last):
        here = np.flatnonzero(last == rank)
        line = lines[int(rank)]
        more[:, here] += line.at(ends[here]) - line.at(since[here])
        more[EDGE, here] += np.maximum(ends[here] - since[here] - more[:, here].sum(axis=0), 0.0)
        rows[here], blamed_steps[here] = _most_of(line, since[here], ends[here], steps[here], computed)
    for rank in np.unique(ranks):
        here = np.flatnonzero(ranks == rank)
        line = lines[int(rank)]
        more[:, here] -= line.at(begins[here]) - line.at(since[here])
    seconds = ends - begins
    groups, since = _in_a_row(ranks, last, rows, steps, since)
    shares = _shared(more, seconds, groups)
    parts = _TO_PARTS @ shares[:WAIT]
    chained = np.flatnonzero(shares[WAIT] > 0)
    waits = SeenWaits(ranks, steps, last, rows, blamed_steps, seconds, ends, parts)
    _follow(waits, chained, shares[WAIT], since)
    return waits


def _of_line(line: RankLine) -> tuple[Ints, Ints, Ints, Floats, Floats, Floats]:
    """Of each wait the rank, its step, the last to come, when it began, the window's begin, and when it ended."""
    places = np.flatnonzero((line.states == WAIT) & (line.last != NO))
    ended = np.flatnonzero((line.states == WAIT) | ((line.states == UNTOLD) & (line.last != NO)))
    before = np.searchsorted(ended, places) - 1
    since = np.full(len(places), line.edges[0] if len(line.edges) else 0.0)
    since[before >= 0] = line.edges[ended[before[before >= 0]] + 1]
    ranks = np.full(len(places), line.rank)
    return ranks, line.steps[places], line.last[places], line.edges[places], since, line.edges[places + 1]


def _begun(lines: Mapping[int, RankLine], ranks: Ints, steps: Ints) -> Floats:
    """When each of these ranks began the step; before one of two that meet has begun it, neither is late in it."""
    begins = np.full(len(ranks), np.inf)
    for rank in np.unique(ranks):
        here, line = np.flatnonzero(ranks == rank), lines[int(rank)]
        known, first = np.unique(line.steps, return_index=True)
        if not len(known):  # it did nothing in any
            continue
        places = np.minimum(np.searchsorted(known, steps[here]), len(known) - 1)
        begins[here] = np.where(known[places] == steps[here], line.edges[first[places]], np.inf)
    return begins


def _last_met(ranks: Ints, last: Ints, ends: Floats) -> Floats:
    """When the last to come to each wait had waited for this rank before: there the two were at one place, too."""
    if not len(ends):
        return ends
    size, places = int(max(ranks.max(), last.max())) + 1, np.arange(len(ends))
    waited = np.sort((ranks * size + last) * len(ends) + places)  # who for whom, and when
    wanted = last * size + ranks
    latest = waited[np.maximum(np.searchsorted(waited, wanted * len(ends) + places) - 1, 0)]
    before = (latest // len(ends) == wanted) & (latest % len(ends) < places)
    return np.where(before, ends[latest % len(ends)], -np.inf)


def _in_a_row(ranks: Ints, last: Ints, rows: Ints, steps: Ints, since: Floats) -> tuple[Ints, Floats]:
    """Waits of a rank for one microbatch, none for another between them, and when the window of all of them begins.

    Ranks run ahead of each other by as many layers as transfers are asked for early, which is longer in a backward than
    in a forward: within a microbatch that comes to nothing.
    """
    order = np.argsort(ranks, kind="stable")
    keys = np.stack([ranks, last, rows, steps])[:, order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    groups = np.empty(len(order), dtype=np.int64)
    groups[order] = np.cumsum(new) - 1
    return groups, since[order[new]][groups]


def _shared(more: Floats, seconds: Floats, groups: Ints) -> Floats:
    """Seconds of each wait over states, in proportion to what its group's last rank was longer in."""
    longer = np.maximum([np.bincount(groups, of) for of in more], 0.0)
    total = longer.sum(axis=0)
    longer[UNTOLD, total <= 0] = 1.0
    shares: Floats = (longer / np.where(total <= 0, 1.0, total))[:, groups] * seconds
    return shares


def _most_of(line: RankLine, since: Floats, until: Floats, steps: Ints, computed: Floats) -> tuple[Ints, Ints]:
    """The microbatch that took most of a window, if it is more than half of what was computed there, and its step."""
    own = np.flatnonzero(line.rows != NO)
    if not len(own):
        return np.full(len(since), NO), steps
    # The pieces of microbatches that begin before the window ends, and end after it begins.
    first = np.searchsorted(line.edges[1:][own], since, "right")
    behind = np.searchsorted(line.edges[:-1][own], until, "left")
    rows = line.rows[own]
    biggest, where = np.full(len(since), NO), steps.copy()
    some = behind > first
    one = some & (rows[np.minimum(first, len(own) - 1)] == rows[behind - 1])
    biggest[one] = rows[behind[one] - 1]
    for place in np.flatnonzero(some & ~one):
        ran = np.unique(rows[first[place] : behind[place]])
        most = ran[np.argmax(computed[ran])]
        biggest[place] = most if 2 * computed[most] > computed[ran].sum() else NO
    where[some] = line.steps[own[behind[some] - 1]]
    return biggest, where


def _follow(waits: SeenWaits, chained: Ints, seconds: Floats, since: Floats) -> None:
    """Give what the last to come had waited itself the causes of those waits. `waits` are in order of their ends."""
    of_rank = {int(rank): np.flatnonzero(waits.ranks == rank) for rank in np.unique([*waits.ranks, *waits.blamed])}
    nobody = np.array([name == "untold" for name in NAMES], dtype=np.float64)
    for place in chained.tolist():
        rank = int(waits.blamed[place])
        own = of_rank[rank][: np.searchsorted(of_rank[rank], place)]
        own = own[np.searchsorted(waits.ends[own], since[place], "right") :]
        mix = waits.parts[:, own].sum(axis=1)
        if not mix.sum():  # they are still to come
            mix = waits.parts[:, place] if waits.parts[:, place].sum() else nobody
        waits.parts[:, place] += seconds[place] * mix / mix.sum()
        if len(own) and 2 * seconds[place] > waits.seconds[place]:
            longest = own[np.argmax(waits.seconds[own])]
            waits.blamed[place], waits.rows[place] = waits.blamed[longest], waits.rows[longest]
            waits.blamed_steps[place] = waits.blamed_steps[longest]
