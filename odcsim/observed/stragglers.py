"""The Parquet that ByteDance's StragglerAnalysis reads: a row for each operation of a Megatron run, with its clock. Of
each step what each rank did, where ranks met, and the microbatches of its pipeline.

Its columns are told at https://github.com/ByteDance-Seed/StragglerAnalysis (Apache-2.0), and what its authors make of
them in https://arxiv.org/abs/2505.05713. It has no lengths and no bytes. Ranks with one `dp_rank` run the same
microbatches; some of them may have been left out.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track, track_of
from odcsim.reading.arrays import decode
from odcsim.reading.arrow import check_pyarrow, parquet_batches, parquet_file, validated
from odcsim.reading.table import PIECE
from odcsim.support import budget
from odcsim.support.numbers import counted
from odcsim.support.values import LARGEST
from odcsim.timeline import Floats, Ints

MAGIC = b"PAR1"
OPERATION, BEGIN, SECONDS = "optype", "start_ts", "duration"
STEP, RANK, STAGE, REPLICA = "step", "rank", "stage", "dp_rank"
WHOLE = (STEP, RANK, STAGE, REPLICA, "seq_id", "mb_id")
COLUMNS = (*WHOLE, OPERATION, BEGIN, SECONDS)
FROM_ZERO = (STEP, RANK, STAGE, REPLICA, SECONDS)
EXPECTED = f"the columns of StragglerAnalysis: {', '.join(COLUMNS)}"
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
ROW = 400  # bytes, with what is made of it


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """A row for each. `names` are those of all kinds of operations, and `codes` places in it."""

    names: tuple[str, ...]
    codes: Ints
    steps: Ints
    ranks: Ints
    numbers: Ints  # among those of its name, in the rank's step
    microbatches: Ints
    begin: Floats
    end: Floats

    def only(self, rows: Any) -> "Operations":
        return Operations(self.names, *(getattr(self, f.name)[rows] for f in fields(self)[1:]))

    def by(self, column: str) -> Iterator[tuple[int, "Operations"]]:
        """Of rows in the order of this column: those of each value."""
        values = getattr(self, column)
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        for begin, end in zip(starts, np.r_[starts[1:], len(values)], strict=True):
            yield int(values[begin]), self.only(slice(begin, end))


def read(path: Path, advance: Callable[[float], None] = lambda _: None) -> SeenRun:
    """`advance` is called with the share that is done."""
    columns = _columns(path)
    stages, replicas = (_of_ranks(columns, name, path) for name in (STAGE, REPLICA))
    names, codes = np.unique(columns[OPERATION], return_inverse=True)
    step_of_row, rank, _, _, number_of_row, microbatch = (columns[name].astype(np.int64) for name in WHOLE)
    begin, end = columns[BEGIN], columns[BEGIN] + columns[SECONDS]
    unsorted = Operations(
        tuple(names.tolist()), codes.astype(np.int64), step_of_row, rank, number_of_row, microbatch, begin, end
    )
    rows = unsorted.only(np.lexsort((end, begin, rank, step_of_row)))
    kinds = np.array([kind_of(name, str(path)) for name in rows.names], dtype=np.int64)
    alone = len(set(stages.values())) == 1 and (max(stages.values()) > 0 or Doing.STAGE in kinds)
    if missing := [name for name in COMPUTES if name not in rows.names]:
        raise InputError(f"holds no {' and no '.join(missing)}", where=str(path), fix="record whole steps")
    every = list(rows.by("steps"))
    complete = [(number, step) for number, step in every if is_whole(step, replicas)]
    if not complete:
        problem = "no step of it has all ranks, with all passes of their microbatches"
        raise InputError(problem, where=str(path), fix="record whole steps of all ranks")
    steps = []
    for number, step in complete:
        steps.append(step_of(number, step, kinds[step.codes], stages, replicas, alone))
        advance(len(steps) / len(complete))
    spread = math.gcd(*stages) if len(stages) > 1 else 1
    lacks = ["lengths of samples", "bytes of collectives"]
    unseen = (spread - 1) * len(stages)
    lacks += [f"what ranks of other stages than {min(stages.values())} did, whom these wait for"] if alone else []
    lacks += [f"{counted(unseen, 'rank')} that run the same microbatches as those that were seen"] if unseen else []
    left = len(every) - len(complete)
    lacks += [f"{counted(left, 'step')} of which ranks or passes are missing"] if left else []
    updates = rows.names.index(UPDATE) if UPDATE in rows.names else -1
    return SeenRun(
        f"StragglerAnalysis' operations of {counted(len(stages), 'rank')}",
        ranks=max(spread * len(stages), max(stages) + 1),
        seen=tuple(stages),
        steps=tuple(steps),
        sync="deferred",
        stages=stages if alone or len(set(stages.values())) > 1 else {},
        replicas=replicas,
        updates=tuple((rows.end - rows.begin)[rows.codes == updates].tolist()),
        trainer="megatron",
        rests="seconds",
        lacks=tuple(lacks),
    )


def _columns(path: Path) -> dict[str, Any]:
    check_pyarrow(path, "Parquet")
    file = decode(path, lambda: parquet_file(path))
    names, count = file.schema_arrow.names, file.metadata.num_rows
    if missing := [name for name in COLUMNS if name not in names]:
        raise InputError(f"no column {' and '.join(missing)}", where=str(path), fix=f"expected {EXPECTED}")
    if not count:
        raise InputError("holds no operation", where=str(path), fix="record some steps")
    budget.check(ROW * count, f"{count:,} operations", path)
    pieces = list(validated(path, parquet_batches(path, list(COLUMNS), PIECE, texts=True)))

    def column(name: str) -> Any:
        if name == OPERATION:
            texts = (piece.column(name).cast("string").to_pylist() for piece in pieces)
            return np.array([text or "" for of in texts for text in of])
        numbers = [piece.column(name).to_numpy(zero_copy_only=False) for piece in pieces]
        return np.concatenate([np.asarray(of, np.float64) for of in numbers])

    read: dict[str, Any] = {name: decode(path, partial(column, name)) for name in COLUMNS}
    for name in (*WHOLE, BEGIN, SECONDS):
        least = 0 if name in FROM_ZERO else -LARGEST
        if (bad := ~((read[name] >= least) & (read[name] <= LARGEST))).any():
            row = int(bad.argmax())
            where, fix = f"{path}, row {row + 1}", f"expected {EXPECTED}"
            raise InputError(f"{name} is {read[name][row]:g}", where=where, fix=fix)
    return read


def _of_ranks(columns: dict[str, Any], name: str, path: Path) -> dict[int, int]:
    """What each rank has in a column that does not change."""
    pairs = np.unique(np.stack([columns[RANK], columns[name]]), axis=1).astype(np.int64)
    if (again := pairs[0][1:] == pairs[0][:-1]).any():
        problem = f"rank {pairs[0][int(again.argmax())]} has two values of {name}"
        raise InputError(problem, where=str(path), fix="give the operations of one run")
    return dict(zip(*pairs.tolist(), strict=True))


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
    meetings, places = _meetings(rows, kinds, stages, replicas)
    waits, unseen = _unwritten(rows, kinds, passes, stages, len(meetings))
    tracks: list[Track] = []
    ran: list[RanMicrobatch] = []
    starts = np.flatnonzero(np.r_[True, rows.ranks[1:] != rows.ranks[:-1]])
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(rows.ranks)], strict=True):
        rank, mine = int(rows.ranks[low]), slice(low, high)
        inside = of[mine] >= 0
        sums = np.bincount(of[mine][inside], seconds[mine][inside])
        ran += [RanMicrobatch(rank, m, s) for m, s in enumerate(sums.tolist()) if s]
        since, until, met = waits.get(rank, (span[0], span[0], NO))
        begin, end = np.r_[rows.begin[mine], since], np.r_[rows.end[mine], until]
        does, meets, numbers = np.r_[kinds[mine], Doing.MEETING], np.r_[places[mine], met], np.r_[of[mine], NO]
        rest = Doing.STAGE if alone else Doing.HOST
        tracks.append(track_of(rank, begin, end, does, meets, numbers, span, rest))
    return RanStep(number, span[1] - span[0], tuple(ran), tuple(tracks), (*meetings, *unseen))


def _meetings(
    rows: Operations, kinds: Ints, stages: Mapping[int, int], replicas: Mapping[int, int]
) -> tuple[list[Met], Ints]:
    """Collectives, and of each row the number of its own."""
    places = np.full(len(rows.ranks), NO)
    groups: dict[tuple[str, int, object], list[int]] = {}
    for row in np.flatnonzero(kinds == Doing.MEETING).tolist():
        name, rank = rows.names[rows.codes[row]], int(rows.ranks[row])
        stage, replica = stages[rank], replicas[rank]
        who: object = (replica, stage) if "layernorm" in name else stage  # what those who meet have in common
        if "embedding" in name:  # of the first stage and the last
            who = replica
        if "clip" in name:
            who = None
        groups.setdefault((name, int(rows.numbers[row]), who), []).append(row)
    meetings: list[Met] = []
    for (name, _, _), members in groups.items():
        came = dict(zip(rows.ranks[members].tolist(), rows.begin[members].tolist(), strict=True))
        places[members] = len(meetings)
        kind = next((kind for kind in COLLECTIVES if kind in name), "all-reduce")
        ranks = max(len(came), 2 if len(stages) == 1 else 1)  # whoever is alone met somebody
        meetings.append(Met(kind, 0, ranks, came, float(rows.end[members].max())))
    return meetings, places


def _unwritten(
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
