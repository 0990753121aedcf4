"""Where the steps of a run went: every rank's own pieces, and its waits by what the rank did that came last."""

from collections.abc import Iterator, Sequence

import numpy as np

from odcsim.decide.diagnosis.lines import (
    CHANCE,
    EVEN,
    UNTOLD,
    WAIT,
    RankLine,
    line_of,
    meetings_of,
    shortest_of,
    stretches,
    work_of,
)
from odcsim.decide.diagnosis.microbatches import ComputedTable, Rows, table_of
from odcsim.decide.diagnosis.outcome import Breakdown, LateMicrobatch, RankFound, StepPart, step_parts
from odcsim.decide.diagnosis.paces import PERSISTS, Paces, paces_of
from odcsim.decide.diagnosis.pipeline import break_down_pipeline
from odcsim.decide.diagnosis.tracks import infer_tracks
from odcsim.decide.diagnosis.waits import CAUSE, NAMES, SeenWaits, waits_of
from odcsim.observed.run import NO, RanStep, SeenRun, Track
from odcsim.program import sync_named
from odcsim.timeline import Floats, Ints

MOST_LATE = 20  # microbatches that are named
SAID = 0.01  # of the step: of less than this nothing is said
SCATTER = 0.2  # of seconds of equal work: more is not taken for chance ...
EXPLAINED = 0.9  # ... where it is more than this of what they differ by
NEARLY = 0.9  # of its meetings: a rank that is last in as many is named ...
UNLIKELY = 0.01  # ... if chance makes it so less often than this
COMPUTE, PADDING = NAMES.index("compute"), NAMES.index("padding")
_OWN = (COMPUTE, COMPUTE, COMPUTE, *(NAMES.index(name) for name in CAUSE[3:]))  # what a state of one's own is


def break_down(run: SeenRun) -> Breakdown:
    """The parts of the step, the ranks, and the microbatches that others waited for."""
    if len(set(run.stages.values())) > 1:
        return break_down_pipeline(run)
    table = table_of(run.steps)
    run, computes = infer_tracks(run, table)
    ranks = tuple(sorted({*run.seen, *(track.rank for step in run.steps for track in step.tracks)}))
    paces = paces_of(table, tuple(sorted({*ranks, *table.ranks.tolist()})), run.alike, computes)
    sums = _StepSums(ranks, len(run.steps))
    shortest = shortest_of(run.steps)
    alike = table.lengths_known * table.even(run.ranks, sync_named(run.sync).meets)
    split, rows = _split(table, computes, paces, alike), _rows(table)
    for first, behind in stretches(run.steps):
        if not any(step.tracks for step in run.steps[first:behind]):
            continue
        even = len(alike) > 0 and bool(alike.all())
        lines = _lines(run.steps[first:behind], first, shortest, rows, split, paces, even)
        waits = waits_of(lines, computes)
        for line in lines.values():
            sums.add(line, table)
        sums.wait(waits)
    seconds = np.maximum(sums.parts, 0.0) / [max(len(step.tracks), 1) for step in run.steps]
    for place, step in enumerate(run.steps):
        if not step.tracks:  # nothing is known of it
            seconds[NAMES.index("untold"), place] = step.seconds
    by_step = dict(zip(NAMES, seconds, strict=True))
    parts = step_parts(by_step)
    of_ranks, late = tuple(_ranks(run, paces, sums)), tuple(_late(run, table, sums))
    return Breakdown(parts, of_ranks, late, by_step, tuple(_cannot(run, table, paces, parts)))


def _rows(table: ComputedTable) -> dict[tuple[int, int], Ints]:
    """Of each step and rank the rows of its microbatches, by their numbers."""
    rows: dict[tuple[int, int], Ints] = {}
    places = np.stack([table.steps, table.ranks], axis=1)
    every, groups = np.unique(places, axis=0, return_inverse=True)
    order = np.argsort(groups.ravel(), kind="stable")
    bounds = np.searchsorted(groups.ravel()[order], np.arange(len(every) + 1))
    for (step, rank), low, high in zip(every.tolist(), bounds[:-1], bounds[1:], strict=True):
        own = order[low:high]
        numbers = np.full(int(table.numbers[own].max()) + 1, NO)
        numbers[table.numbers[own]] = own
        rows[step, rank] = numbers
    return rows


def _split(table: ComputedTable, computes: Floats, paces: Paces, alike: Rows) -> Floats:
    """Shares of each microbatch's compute: at the usual pace, what its device's pace adds, and what neither tells.

    Where lengths are not known, whatever the pace leaves is of the work. Of `alike`, those
    of which all ranks hold the same, nothing is.
    """
    times = np.array([paces.times[rank] for rank in table.ranks.tolist()] + [1.0])
    split = np.stack([1 / times, 1 - 1 / times, np.zeros(len(times))])
    if paces.usual is not None and table.lengths_known:
        own = computes > 0
        even = np.divide(paces.usual, computes, out=np.ones_like(computes), where=own)
        split[:, :-1][:, own] = np.stack([even, even * (times[:-1] - 1), 1 - even * times[:-1]])[:, own]
    split[CHANCE, :-1] += np.where(alike, split[EVEN, :-1], 0.0)
    split[EVEN, :-1][alike] = 0.0
    return split


def _lines(
    steps: Sequence[RanStep],
    first: int,
    shortest: dict[tuple[str, int, int], float],
    rows: dict[tuple[int, int], Ints],
    split: Floats,
    paces: Paces,
    even: bool,
) -> dict[int, RankLine]:
    """`even`: whether all ranks hold the same: nor do they wait for what is computed outside of microbatches."""
    met = meetings_of(steps, shortest)
    of_rank: dict[int, list[tuple[int, Track]]] = {}
    for place, step in enumerate(steps, first):
        for track in step.tracks:
            of_rank.setdefault(track.rank, []).append((place, track))
    work = {rank: work_of(track for _, track in tracks) for rank, tracks in of_rank.items()}
    lines = {}
    for rank, tracks in of_rank.items():
        usual = 1 / paces.times[rank]
        split[:, -1] = usual * (not even), 1 - usual, usual * even
        lines[rank] = line_of(rank, tracks, met, first, work, rows, split)
    return lines


class _StepSums:
    """Seconds of every part in every step, of every rank, and of what every microbatch was waited for."""

    def __init__(self, ranks: Sequence[int], steps: int) -> None:
        self.ranks = ranks
        self.parts = np.zeros((len(NAMES), steps))
        self.of_rank = np.zeros((len(NAMES), len(ranks)))
        self.waited, self.caused = np.zeros(len(ranks)), np.zeros(len(ranks))
        self.late: dict[tuple[int, int, int], Floats] = {}  # step, rank, row: seconds by part

    def add(self, line: RankLine, table: ComputedTable) -> None:
        """A rank's own pieces, without its waits."""
        inside = line.steps != NO
        where, took = line.steps[inside], line.seconds[:, inside]
        padding = took[: CHANCE + 1].sum(axis=0) * np.append(table.padding, 0.0)[line.rows[inside]]
        place = self.ranks.index(line.rank)
        for part, seconds in [*zip(_OWN, took[:WAIT], strict=True), (COMPUTE, -padding), (PADDING, padding)]:
            self.parts[part] += np.bincount(where, seconds, self.parts.shape[1])
            self.of_rank[part, place] += seconds.sum()
        self.waited[place] += took[[UNTOLD, WAIT]].sum()

    def wait(self, waits: SeenWaits) -> None:
        owners = np.searchsorted(self.ranks, waits.ranks)
        for part, seconds in enumerate(waits.parts):
            self.parts[part] += np.bincount(waits.steps, seconds, self.parts.shape[1])
            self.of_rank[part] += np.bincount(owners, seconds, len(self.ranks))
        self.caused += np.bincount(np.searchsorted(self.ranks, waits.blamed), waits.seconds, len(self.ranks))
        keys = np.stack([waits.blamed_steps, waits.blamed, waits.rows], axis=1)
        every, groups = np.unique(keys, axis=0, return_inverse=True)
        by = np.zeros((len(every), len(NAMES)))
        np.add.at(by, groups.ravel(), waits.parts.T)
        for (step, rank, row), seconds in zip(every.tolist(), by, strict=True):
            self.late[step, rank, row] = self.late.get((step, rank, row), np.zeros(len(NAMES))) + seconds


def _ranks(run: SeenRun, paces: Paces, sums: _StepSums) -> Iterator[RankFound]:
    total = sums.of_rank.sum(axis=0)
    for place, rank in enumerate(sums.ranks):
        of = float(total[place]) or 1.0
        compute = float(sums.of_rank[[COMPUTE, PADDING], place].sum()) / of
        caused = float(sums.caused[place]) / max(len(run.steps), 1)
        yield RankFound(rank, compute, float(sums.waited[place]) / of, paces.times[rank], caused)


def _late(run: SeenRun, table: ComputedTable, sums: _StepSums) -> Iterator[LateMicrobatch]:
    latest = sorted(sums.late.items(), key=lambda of: -of[1].sum())[:MOST_LATE]
    for (step, rank, row), seconds in latest:
        tokens = table.held[(table.steps == step) & (table.ranks == rank)].sum() if row == NO else table.held[row]
        number = NO if row == NO else int(table.numbers[row])
        why = NAMES[int(np.argmax(seconds))]
        yield LateMicrobatch(run.steps[step].number, rank, number, int(tokens), float(seconds.sum()), why)


def _always_last(run: SeenRun) -> str:
    """The rank that was last in nearly all meetings, in more steps than chance makes it; else nothing."""
    from scipy.special import bdtrc

    last = np.zeros((len(run.steps), run.ranks), dtype=np.int64)
    for place, step in enumerate(run.steps):
        for met in step.meetings:
            if 1 < met.ranks <= len(met.came):
                last[place, max(met.came, key=met.came.__getitem__)] += 1
    rank, met_in = int(np.argmax(last.sum(axis=0))), last.any(axis=1)
    most, steps = int((last.argmax(axis=1) == rank)[met_in].sum()), int(met_in.sum())
    count, count_of_all = int(last[:, rank].sum()), int(last.sum())
    if not most or count < NEARLY * count_of_all or bdtrc(most - 1, steps, 1 / run.ranks) > UNLIKELY / run.ranks:
        return ""
    return f"rank {rank} was last in {count} of {count_of_all} meetings"


def _cannot(run: SeenRun, table: ComputedTable, paces: Paces, parts: Sequence[StepPart]) -> Iterator[str]:
    share, always = {part.name: part.share for part in parts}, _always_last(run)
    missing = sorted({*range(run.ranks)} - {*run.seen})
    if missing and share["untold"] >= SAID:
        yield f"who was waited for in {share['untold']:.0%} of the step: that needs the files of {_named(missing)}"
    gaps = [{*run.seen} - {track.rank for track in step.tracks} for step in run.steps if step.tracks]
    absent, some = sorted({rank for of in gaps for rank in of}), sum(map(bool, gaps))
    if absent:
        yield (
            f"what {_named(absent)} did in {some} of {len(run.steps)} steps: no file shows it; the parts there are "
            "of the other ranks alone"
        )
    if missing and share["transfer"] + share["untold"] >= SAID and sync_named(run.sync).meets:
        yield (
            "transfers apart from waiting for ranks that were not seen: as long as the shortest of meetings alike "
            "counts as a transfer"
        )
    if share["lengths"] + share["device"] >= SAID:
        if paces.told == PERSISTS and paces.uneven:
            yield "whether a rank is slow or always has the longest samples: lengths of its microbatches would tell"
        elif not paces.told:
            yield "whether a rank is slow: nothing says what equal work takes"
    explained = True  # as far as lengths are known they tell at least some of why seconds of microbatches differ
    if paces.usual is not None and table.lengths_known and (table.seconds > 0).all():
        own = np.log(table.seconds / [paces.times[rank] for rank in table.ranks.tolist()])
        off = float(np.std(own - np.log(paces.usual)))
        explained = off < SCATTER or off < EXPLAINED * float(np.std(own))
    if run.ranks > 1 and not explained:
        yield "why microbatches take as long as they do: these lengths do not explain it; are they of this run?"
    together = sync_named(run.sync).meets
    tokens_alone = table.tokens.any() and not table.squares.any()
    if tokens_alone and table.even(run.ranks, together).all() and share["lengths"] >= SAID:
        yield "whether microbatches of as many tokens hold longer samples: their lengths would tell"
    if run.ranks == 1 and share["untold"] >= SAID:
        yield f"what one process is blocked by in {share['untold']:.0%} of the step, which is no other rank"
    elif paces.usual is not None and table.lengths_known and not missing and not absent and share["untold"] >= SAID:
        where = f"{always}: it is slow, or lengths do not tell all" if always else "no single rank is behind it"
        yield (
            f"why {share['untold']:.0%} of the step waits for compute that took longer than lengths predict: {where}"
        )
    if together and not (table.seconds > 0).all():  # waiting is inferred
        if always and share["device"] >= SAID:
            yield f"whether a rank is slower still than what others hold says: {always}"
        if paces.usual is None:
            yield "how long ranks waited inside microbatches: neither what they hold nor what they computed is known"
        else:
            yield "slow devices where all ranks hold equal microbatches: waiting is inferred from what they hold"
    if len(run.steps) == 1:
        yield "how much it differs between steps: there is one step, so shares have no interval"


def _named(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8]))
    return f"rank{'s' * (len(ranks) > 1)} {listed}{', ...' * (len(ranks) > 8)}"
