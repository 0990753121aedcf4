"""What each microbatch of a run held, from a file beside the run's own: lengths by rank, step and microbatch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from odcsim.errors import InputError
from odcsim.fitting.logs import read_lengths
from odcsim.observed.run import RanMicrobatch, RanStep, SeenRun
from odcsim.observed.watched import WatchedRank

LACKED = ("lengths of samples", "what microbatches held")  # as what a run lacks begins, where these are told
FIX = "give a row for each microbatch of each step that was traced"
NUMBERED = "give a CSV file with device, step and lengths whose steps are numbered as the run's"
UNSURE = "whether lengths are of the same steps: they are joined by number, and no tokens of the run tell"
Held = Mapping[tuple[int, int], list[tuple[tuple[int, ...], int]]]  # lengths and computed tokens by rank and step


def of_table(path: Path, one: bool) -> Held:
    """Of a CSV file with device, step and lengths; with one rank the device may be missing."""
    return {key: [(lengths, 0) for lengths in rows] for key, rows in read_lengths(path, one).items()}


def of_watched(files: list[WatchedRank]) -> Held:
    return {
        (file.rank, number): [(m.lengths, m.computed) for m in step.microbatches]
        for file in files
        for number, step in file.steps.items()
    }


def joined(run: SeenRun, held: Held, where: str) -> SeenRun:
    """The run with these lengths. Where a rank's microbatches were not told apart, they are as many as are held."""
    alone = len(run.seen) == 1 and run.seen[0] not in {rank for rank, _ in held}
    steps = tuple(_joined(run, step, held, 0 if alone else None, where) for step in run.steps)
    _check_tokens(run, steps, where)
    lacks = tuple(text for text in run.lacks if not text.startswith(LACKED))
    lacks += (UNSURE,) if run.rests == "seconds" else ()
    return replace(run, steps=steps, rests="lengths", lacks=lacks)


def _joined(run: SeenRun, step: RanStep, held: Held, device: int | None, where: str) -> RanStep:
    microbatches: list[RanMicrobatch] = []
    for rank in run.seen:
        rows = held.get((rank if device is None else device, step.number))
        if rows is None:
            raise InputError(f"no lengths of step {step.number} on rank {rank}", where=where, fix=FIX)
        ran = [m for m in step.microbatches if m.rank == rank] or [
            RanMicrobatch(rank, i, 0.0) for i in range(len(rows))
        ]
        if len(ran) != len(rows):
            problem = f"{len(rows)} microbatches in step {step.number} on rank {rank}, where {len(ran)} ran"
            raise InputError(problem, where=where, fix=FIX)
        microbatches += [
            replace(m, lengths=lengths, tokens=0, computed=computed or m.computed)
            for m, (lengths, computed) in zip(sorted(ran, key=lambda m: m.number), rows, strict=True)
        ]
    return replace(step, microbatches=tuple(microbatches))


def _check_tokens(run: SeenRun, steps: tuple[RanStep, ...], where: str) -> None:
    """Refuse lengths of other steps: who numbers steps from 0 and who from 1 differ by one, and tokens alone tell.

    A run computes what its samples hold and padding, or one token less of each where labels are shifted beforehand.
    """
    ran = {(step.number, m.rank, m.number): m.tokens for step in run.steps for m in step.microbatches}
    for step in steps:
        for m in step.microbatches:
            tokens, given = ran.get((step.number, m.rank, m.number), 0), m.computed or m.held
            if 0 < tokens < given - len(m.lengths):
                place = f"microbatch {m.number} of step {step.number} on rank {m.rank}"
                problem = f"{given:,} tokens in {place}, which ran {tokens:,}: it did not hold these"
                raise InputError(problem, where=where, fix=NUMBERED)
