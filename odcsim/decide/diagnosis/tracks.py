"""Tracks of steps of which nothing but microbatches is known: what a rank computed, and what it waited for.

Where ranks meet inside a microbatch, none is done with it before the slowest is: the others wait at its end, or at the
next one's begin. So from when the last rank is done with one to when the last is done with the next it is the slowest
that computes. What each would have taken is fitted to the slowest of each, or known where whoever wrote the file could
tell waiting apart.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from odcsim.decide.diagnosis.microbatches import ComputedTable, Rows, expected
from odcsim.decide.diagnosis.paces import CHANCE, CLEAR, LENGTHS, Paces, paces_of
from odcsim.observed.run import NO, Doing, Met, RanStep, SeenRun, Track
from odcsim.program import sync_named
from odcsim.timeline import Floats, Ints

ROUNDS = 5  # of telling which is the slowest
SURELY = 0.9  # of meetings: a rank is slow by as much as what others hold says in more than the rest


def infer_tracks(run: SeenRun, table: ComputedTable) -> tuple[SeenRun, Floats]:
    """The run with tracks in all steps that have microbatches, and the compute of every microbatch of the table."""
    together = sync_named(run.sync).meets
    steps = dict[int, RanStep]()  # in which compute is still to be told apart from waiting
    for place, step in enumerate(run.steps):
        apart = step.meetings or not together or all(m.seconds for m in step.microbatches)
        if step.microbatches and not (step.tracks and apart):
            steps[place] = step
    if not steps:
        return run, table.seconds
    computes = np.where(table.seconds > 0, table.seconds, table.walls)
    rows = list(zip(table.steps.tolist(), table.ranks.tolist(), table.numbers.tolist(), strict=True))
    if together:
        steps = {place: step if step.tracks else _undivided(step) for place, step in steps.items()}
        windows = {place: _windows(step) for place, step in steps.items()}
        longest = np.zeros(len(rows))  # for which a rank can have computed what others wait for; 0: not known
        for i, (place, rank, number) in enumerate(rows):
            of = windows.get(place)
            if of is not None and (rank, number) in of.begins:
                longest[i] = of.ends[number] - max(of.begins[rank, number], of.before[number])
        computes = _computes(run, table, longest)
    own = {row: seconds for row, seconds in zip(rows, computes.tolist(), strict=True) if row[0] in steps}
    for place, step in steps.items():
        here = {(rank, number): own[place, rank, number] for at, rank, number in own if at == place}
        steps[place] = _parted(step, windows[place], here, run.ranks) if together else _alone(step, here, run.ranks)
    return replace(run, steps=tuple(steps.get(place, step) for place, step in enumerate(run.steps))), computes


def _computes(run: SeenRun, table: ComputedTable, longest: Floats) -> Floats:
    """Told by the file; else of the slowest as long as it has, and of the others what they would take for so much, but
    no more than that. Who is the slowest is not known where somebody was not seen."""
    longest = np.where(table.seconds > 0, table.seconds, np.where(longest > 0, longest, table.walls))
    if (table.seconds > 0).all():
        return table.seconds
    paces, slowest = _slowest(run, table, longest)
    if paces.usual is None:
        return longest
    slow = np.array([paces.times[rank] for rank in table.ranks.tolist()])
    certain = (table.seconds > 0) | (slowest & (len(run.seen) >= run.ranks))
    guess: Floats = np.where(certain, longest, np.minimum(paces.usual * slow, longest))
    return guess


def _slowest(run: SeenRun, table: ComputedTable, longest: Floats) -> tuple[Paces, Rows]:
    """Fitted to who seems to be the slowest of each meeting, and again with who is by that fit; and who that is."""
    _, groups = np.unique(np.stack([table.steps, table.numbers]), axis=1, return_inverse=True)
    ranks = tuple(sorted({*run.seen, *table.ranks.tolist()}))
    groups, paces = groups.ravel(), Paces({}, {})
    guess: Floats = table.tokens + table.squares / max(float(np.sqrt(table.squares.max(initial=0.0))), 1.0)
    chosen = np.zeros(len(longest), dtype=bool)
    for _ in range(ROUNDS):
        order = np.lexsort((guess, groups))
        last = np.zeros(len(longest), dtype=bool)
        last[order[np.append(groups[order][1:] != groups[order][:-1], True)]] = True
        if (last == chosen).all():
            break
        chosen = last
        paces = paces_of(table, ranks, run.alike, np.where(chosen | (table.seconds > 0), longest, 0.0))
        if paces.usual is None:
            break
        guess = paces.usual * np.array([paces.times[rank] for rank in table.ranks.tolist()])
    if paces.told != LENGTHS or paces.usual is None or not (longest > 0).all():
        return paces, chosen
    return _always(table, ranks, longest, groups, guess, chosen) or (paces, chosen)


def _always(
    table: ComputedTable, ranks: tuple[int, ...], longest: Floats, groups: Ints, guess: Floats, chosen: Rows
) -> tuple[Paces, Rows] | None:
    """The rank that is the slowest of all meetings, whatever the others hold: seconds follow what it holds, clearly
    better than what the longest holds. It is slow by as much at least as others would else have been slower."""
    from scipy.special import bdtr

    wide = np.full((len(ranks), int(groups.max(initial=-1)) + 1), np.nan)
    usual = np.full(wide.shape[1], np.nan)
    usual[groups[chosen]] = np.abs(np.log(longest[chosen] / guess[chosen]))
    best: tuple[float, Paces, Rows] | None = None
    for place, rank in enumerate(ranks):
        rows = table.ranks == rank
        own = expected(table, longest, rows)
        if own is None or len(ranks) < 2:
            continue
        wide[place, groups[rows]] = np.abs(np.log(longest[rows] / own[rows]))
        better, worse = int((wide[place] < usual - CLEAR).sum()), int((wide[place] > usual + CLEAR).sum())
        off = float(np.nanmedian(wide[place]))
        if bdtr(worse, better + worse, 0.5) > CHANCE / len(ranks) or (best and off > best[0]):
            continue
        others = np.zeros(wide.shape[1])
        np.maximum.at(others, groups[~rows], (own / longest)[~rows])
        slow = max(float(np.quantile(others, SURELY)), 1.0)
        times = {one: slow if one == rank and slow > math.exp(CLEAR) else 1.0 for one in ranks}
        best = off, Paces(times, dict.fromkeys(ranks, 0.0), LENGTHS, own / times[rank]), rows
    return best and best[1:]


_Seconds = Mapping[tuple[int, int], float]  # by rank and microbatch


class _Windows(NamedTuple):
    """From when to when ranks had their microbatches, and when the last rank was done with each and the one before."""

    begins: _Seconds
    ends: Mapping[int, float]
    before: Mapping[int, float]


def _undivided(step: RanStep) -> RanStep:
    """Its microbatches as they follow each other, each one piece."""
    walls = {(one.rank, one.number): max(one.wall, one.seconds) for one in step.microbatches}
    tracks = []
    for rank, numbers in _of_ranks(walls):
        pieces = _InferredTrack()
        for number in numbers:
            pieces.add(pieces.edges[-1] + walls[rank, number], Doing.MEETING, NO, number)
        pieces.add(step.seconds, Doing.EDGE, NO, NO)
        tracks.append(pieces.track(rank))
    return replace(step, tracks=tuple(tracks))


def _windows(step: RanStep) -> _Windows:
    begins, ends = dict[tuple[int, int], float](), dict[int, float]()
    for track in step.tracks:
        for place in np.flatnonzero((track.kinds == Doing.MEETING) & (track.microbatches != NO)).tolist():
            number = int(track.microbatches[place])
            begins.setdefault((track.rank, number), float(track.edges[place]))
            ends[number] = max(ends.get(number, -np.inf), float(track.edges[place + 1]))
    numbers = sorted(ends)
    upto = np.maximum.accumulate([-np.inf, *(ends[number] for number in numbers)]).tolist()
    return _Windows(begins, ends, dict(zip(numbers, upto[:-1], strict=True)))


def _parted(step: RanStep, windows: _Windows, own: _Seconds, ranks: int) -> RanStep:
    """A piece in which a microbatch's compute is not told apart is cut: what is left of the meeting before, compute,
    its own meeting."""
    came: dict[int, dict[int, float]] = {}
    tracks, numbers = [], sorted(windows.ends)
    previous = dict(zip(numbers, [NO, *numbers], strict=False))
    for track in step.tracks:
        pieces = _InferredTrack(float(track.edges[0]))
        for kind, number, end in zip(track.kinds, track.microbatches.tolist(), track.edges[1:].tolist(), strict=True):
            if kind == Doing.MEETING and number != NO:
                seconds = own.get((track.rank, number), 0.0)
                pieces.add(min(windows.before[number], end - seconds), Doing.MEETING, previous[number], NO)
                pieces.add(min(end, pieces.edges[-1] + seconds), Doing.COMPUTE, NO, number)
                came.setdefault(number, {})[track.rank] = pieces.edges[-1]
                pieces.add(end, Doing.MEETING, number, number)
            else:
                pieces.add(end, Doing(kind), NO, number)
        tracks.append(pieces.track(track.rank))
    every = range(max(came, default=-1) + 1)
    met = tuple(Met("microbatch", 0, ranks, came.get(n, {}), windows.ends.get(n, 0.0)) for n in every)
    return replace(step, tracks=tuple(tracks), meetings=met)


def _alone(step: RanStep, own: _Seconds, ranks: int) -> RanStep:
    """Nobody waits before the step's end."""
    wall = {(one.rank, one.number): one.wall for one in step.microbatches}
    rows = {}
    for rank, numbers in _of_ranks(own):
        pieces = rows[rank] = _InferredTrack()
        for number in numbers:
            begin = pieces.edges[-1]
            pieces.add(begin + own[rank, number], Doing.COMPUTE, NO, number)
            pieces.add(begin + wall[rank, number], Doing.TRANSFER, NO, number)
    came = {rank: pieces.edges[-1] for rank, pieces in rows.items()}
    last = max(came.values())
    for pieces in rows.values():
        pieces.add(last, Doing.MEETING, 0, NO)
        pieces.add(max(step.seconds, last), Doing.EDGE, NO, NO)
    met = Met("step", 0, ranks, came, last if len(came) == ranks else max(step.seconds, last))
    return replace(step, tracks=tuple(pieces.track(rank) for rank, pieces in rows.items()), meetings=(met,))


def _of_ranks(own: _Seconds) -> Iterator[tuple[int, list[int]]]:
    for rank in sorted({rank for rank, _ in own}):
        yield rank, sorted(number for one, number in own if one == rank)


class _InferredTrack:
    """Pieces of one rank, each from where the one before it ended."""

    def __init__(self, begin: float = 0.0) -> None:
        self.edges = [begin]
        self.does: list[tuple[int, int, int]] = []

    def add(self, end: float, kind: Doing, meeting: int, microbatch: int) -> None:
        self.edges.append(max(end, self.edges[-1]))
        self.does.append((kind, meeting, microbatch))

    def track(self, rank: int) -> Track:
        kinds, meetings, numbers = np.array(self.does, dtype=np.int64).reshape(-1, 3).T
        return Track(rank, kinds, np.array(self.edges), meetings, numbers)
