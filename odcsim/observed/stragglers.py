"""The Parquet that ByteDance's StragglerAnalysis reads: a row for each operation of a Megatron run, with its clock.

Its columns are told at https://github.com/ByteDance-Seed/StragglerAnalysis (Apache-2.0), and what its authors make of
them in https://arxiv.org/abs/2505.05713. It has no lengths and no bytes. Ranks with one `dp_rank` run the same
microbatches; some of them may have been left out.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.observed.megatron import COMPUTES, UPDATE, is_whole, kind_of, step_of
from odcsim.observed.operations import Operations
from odcsim.observed.run import Doing, SeenRun
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
ROW = 400  # bytes, with what is made of it


def read(path: Path, advance: Callable[[float], None] = lambda _: None) -> SeenRun:
    """`advance` is called with the share that is done."""
    columns = _columns(path)
    stages, replicas = (_of_ranks(columns, name, path) for name in (STAGE, REPLICA))
    rows = _operations(columns).ordered()
    kinds = np.array([kind_of(name, str(path)) for name in rows.names], dtype=np.int64)
    alone = len(set(stages.values())) == 1 and (max(stages.values()) > 0 or Doing.STAGE in kinds)
    if missing := [name for name in COMPUTES if name not in rows.names]:
        raise InputError(f"holds no {' and no '.join(missing)}", where=str(path), fix="record whole steps")
    every = list(rows.by("steps"))
    whole = [(number, step) for number, step in every if is_whole(step, replicas)]
    if not whole:
        problem = "no step of it has all ranks, with all passes of their microbatches"
        raise InputError(problem, where=str(path), fix="record whole steps of all ranks")
    steps = []
    for number, step in whole:
        steps.append(step_of(number, step, kinds[step.codes], stages, replicas, alone))
        advance(len(steps) / len(whole))
    spread = math.gcd(*stages) if len(stages) > 1 else 1
    lacks = ["lengths of samples", "bytes of collectives"]
    unseen = (spread - 1) * len(stages)
    lacks += [f"what ranks of other stages than {min(stages.values())} did, whom these wait for"] if alone else []
    lacks += [f"{counted(unseen, 'rank')} that run the same microbatches as those that were seen"] if unseen else []
    left = len(every) - len(whole)
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
    read: dict[str, Any] = {name: decode(path, partial(_column, pieces, name)) for name in COLUMNS}
    for name in (*WHOLE, BEGIN, SECONDS):
        least = 0 if name in FROM_ZERO else -LARGEST
        if (bad := ~((read[name] >= least) & (read[name] <= LARGEST))).any():
            row = int(bad.argmax())
            raise InputError(
                f"{name} is {read[name][row]:g}", where=f"{path}, row {row + 1}", fix=f"expected {EXPECTED}"
            )
    return read


def _column(pieces: list[Any], name: str) -> Any:
    if name == OPERATION:
        return np.array([text or "" for piece in pieces for text in piece.column(name).cast("string").to_pylist()])
    return np.concatenate(
        [np.asarray(piece.column(name).to_numpy(zero_copy_only=False), np.float64) for piece in pieces]
    )


def _operations(columns: dict[str, Any]) -> Operations:
    names, codes = np.unique(columns[OPERATION], return_inverse=True)
    step, rank, _, _, number, microbatch = (columns[name].astype(np.int64) for name in WHOLE)
    begin: Floats = columns[BEGIN]
    of_rows: Ints = codes.astype(np.int64)
    return Operations(tuple(names.tolist()), of_rows, step, rank, number, microbatch, begin, begin + columns[SECONDS])


def _of_ranks(columns: dict[str, Any], name: str, path: Path) -> dict[int, int]:
    """What each rank has in a column that does not change."""
    pairs = np.unique(np.stack([columns[RANK], columns[name]]), axis=1).astype(np.int64)
    if (again := pairs[0][1:] == pairs[0][:-1]).any():
        problem = f"rank {pairs[0][int(again.argmax())]} has two values of {name}"
        raise InputError(problem, where=str(path), fix="give the operations of one run")
    return dict(zip(*pairs.tolist(), strict=True))
