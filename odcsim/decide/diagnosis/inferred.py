"""Tracks of steps of which nothing but microbatches is known: what a rank computed, and what it waited for.

Where ranks meet inside a microbatch, all take as long as the slowest. What each would have taken is fitted to the
slowest of each, or known where whoever wrote the file could tell waiting apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from odcsim.decide.diagnosis.computed import ComputedTable, Rows
from odcsim.decide.diagnosis.paces import Paces, paces_of
from odcsim.observed.run import NO, Doing, Met, RanStep, SeenRun, Track
from odcsim.program import sync_named
from odcsim.timeline import Floats

ROUNDS = 5  # of telling which is the slowest


def tracked(run: SeenRun, table: ComputedTable) -> tuple[SeenRun, Floats]:
    """The run with tracks in all steps that have microbatches, and the compute of every microbatch of the table."""
    computes = _computes(run, table)
    together = sync_named(run.sync).meets
    steps = []
    for place, step in enumerate(run.steps):
        if not step.tracks and step.microbatches:
            here = np.flatnonzero(table.steps == place)
            walls = np.maximum(table.walls[here], computes[here])
            rows = list(zip(table.ranks[here].tolist(), table.numbers[here].tolist(), strict=True))
            own, wall = (dict(zip(rows, of.tolist(), strict=True)) for of in (computes[here], walls))
            step = (_meeting if together else _alone)(step, own, wall, run.ranks)
        elif together and not step.meetings and not all(m.seconds for m in step.microbatches):
            here = np.flatnonzero(table.steps == place)
            rows = list(zip(table.ranks[here].tolist(), table.numbers[here].tolist(), strict=True))
            step = _parted(step, dict(zip(rows, computes[here].tolist(), strict=True)), run.ranks)
        steps.append(step)
    return replace(run, steps=tuple(steps)), computes


def _computes(run: SeenRun, table: ComputedTable) -> Floats:
    """Told by the file; else of the slowest all of its wall, and of the others what they would take for so much, but no
    more than that. Who is the slowest is not known where somebody was not seen."""
    if (table.seconds > 0).all():
        return table.seconds
    if not sync_named(run.sync).meets:
        return np.where(table.seconds > 0, table.seconds, table.walls)
    ranks = tuple(sorted({*run.seen, *table.ranks.tolist()}))
    walls = np.where(table.seconds > 0, table.seconds, table.walls)
    found, slowest = _slowest(run, ranks, table, walls)
    if found.usual is None:
        return walls
    slow = np.array([found.times[rank] for rank in table.ranks.tolist()])
    whole = (table.seconds > 0) | (slowest & (len(run.seen) >= run.ranks))
    guess: Floats = np.where(whole, walls, np.minimum(found.usual * slow, walls))
    return guess


def _slowest(run: SeenRun, ranks: tuple[int, ...], table: ComputedTable, walls: Floats) -> tuple[Paces, Rows]:
    """Fitted to who seems to be the slowest of each meeting, and again with who is by that fit; and who that is."""
    places = np.stack([table.steps, table.numbers * sync_named(run.sync).meets], axis=1)
    _, groups = np.unique(places, axis=0, return_inverse=True)
    groups, found = groups.ravel(), Paces({}, {})
    guess: Floats = table.tokens + table.squares / max(float(np.sqrt(table.squares.max(initial=0.0))), 1.0)
    chosen = np.zeros(len(walls), dtype=bool)
    for _ in range(ROUNDS):
        order = np.lexsort((guess, groups))
        last = np.zeros(len(walls), dtype=bool)
        last[order[np.append(groups[order][1:] != groups[order][:-1], True)]] = True
        if (last == chosen).all():
            break
        chosen = last
        found = paces_of(table, ranks, run.alike, np.where(chosen | (table.seconds > 0), walls, 0.0))
        if found.usual is None:
            break
        guess = found.usual * np.array([found.times[rank] for rank in table.ranks.tolist()])
    return found, chosen


_Seconds = Mapping[tuple[int, int], float]  # by rank and microbatch


def _meeting(step: RanStep, own: _Seconds, wall: _Seconds, ranks: int) -> RanStep:
    """All meet in every microbatch."""
    came: dict[int, dict[int, float]] = {}
    tracks, ends = [], dict[int, float]()
    for rank, numbers in _of_ranks(own):
        pieces = _InferredTrack()
        for number in numbers:
            begin = pieces.edges[-1]
            pieces.add(begin + own[rank, number], Doing.COMPUTE, NO, number)
            came.setdefault(number, {})[rank] = pieces.edges[-1]
            pieces.add(begin + wall[rank, number], Doing.MEETING, number, number)
            ends[number] = max(ends.get(number, 0.0), pieces.edges[-1])
        pieces.add(max(step.seconds, pieces.edges[-1]), Doing.EDGE, NO, NO)
        tracks.append(pieces.track(rank))
    return replace(step, tracks=tuple(tracks), meetings=_met(came, ends, ranks))


def _parted(step: RanStep, own: _Seconds, ranks: int) -> RanStep:
    """Pieces in which a microbatch's compute is not told apart from its meeting are cut in two."""
    came: dict[int, dict[int, float]] = {}
    tracks, ends = [], dict[int, float]()
    for track in step.tracks:
        pieces = _InferredTrack(float(track.edges[0]))
        for kind, number, end in zip(track.kinds, track.microbatches.tolist(), track.edges[1:].tolist(), strict=True):
            if kind == Doing.MEETING and number != NO:
                pieces.add(min(end, pieces.edges[-1] + own.get((track.rank, number), 0.0)), Doing.COMPUTE, NO, number)
                came.setdefault(number, {})[track.rank] = pieces.edges[-1]
                pieces.add(end, Doing.MEETING, number, number)
                ends[number] = max(ends.get(number, end), end)
            else:
                pieces.add(end, Doing(kind), NO, number)
        tracks.append(pieces.track(track.rank))
    return replace(step, tracks=tuple(tracks), meetings=_met(came, ends, ranks))


def _met(came: Mapping[int, Mapping[int, float]], ends: Mapping[int, float], ranks: int) -> tuple[Met, ...]:
    """One meeting for each number of a microbatch."""
    return tuple(
        Met("microbatch", 0, ranks, came.get(n, {}), ends.get(n, 0.0)) for n in range(max(came, default=-1) + 1)
    )


def _alone(step: RanStep, own: _Seconds, wall: _Seconds, ranks: int) -> RanStep:
    """Nobody waits before the step's end."""
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
