"""A sweep from its grid to its table, and the shares of one put together."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odcsim.decide.sweeps import columns, store, workers, written
from odcsim.decide.sweeps.grid import Grid, grid_of
from odcsim.decide.sweeps.point import Point
from odcsim.decide.sweeps.rows import SweepRows
from odcsim.decide.sweeps.work import Done
from odcsim.errors import InputError
from odcsim.support.files import check_apart, check_writable
from odcsim.support.held import held

WHOLE = (1, 1)  # the share of a sweep that is all of it


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is left to do of a grid, or of one of its shares, for a table."""

    grid: Grid
    output: Path
    share: tuple[int, int]
    points: tuple[Point, ...]

    @property
    def kept(self) -> Path:
        return store.beside(self.output, *self.share)


@dataclass(frozen=True, slots=True)
class Written:
    """What a table holds. `reason`: why one of those that were refused was."""

    points: int
    rows: int
    refused: int
    reason: str


def sweep(
    grid: Grid | str | os.PathLike[str] | Mapping[str, Any],
    *,
    executor: Executor | None = None,
    output: str | os.PathLike[str] | None = None,
) -> SweepRows:
    """The rows of every point of a grid: a TOML file, or a dict of the same keys. `executor` works on points, such as a
    ProcessPoolExecutor; without one this process does. With `output` a table is written, and what is done is kept
    beside it, so that a sweep that was ended goes on where it was."""
    asked = grid_of(grid)
    if output is not None:
        left = planned(asked, Path(output))
        run(left, executor)
        results = list(store.results(_of(asked, store.lines(store.all_beside(left.output)))))
    else:
        done = workers.results(asked.points, executor)
        results = sorted(done, key=lambda result: columns.order(result.rows[0]))
    return SweepRows(dict(row) for result in results for row in result.rows)


def planned(grid: Grid, output: Path, share: tuple[int, int] = WHOLE) -> Sweep:
    """What no earlier run has done, nor any share of this sweep."""
    written.check(output)
    check_writable(output)
    check_apart(output, grid.files)
    known = store.lines(store.all_beside(output))
    return Sweep(grid, output, share, tuple(point for point in grid.share(*share) if point.key not in known))


def run(plan: Sweep, executor: Executor | None, advance: Callable[[Done], None] = lambda _: None) -> Written | None:
    """Do it, and write the table unless this is a share: shares are put together when all are there."""
    if plan.points:
        with held(plan.kept):
            _work(plan, executor, advance)
    if plan.share != WHOLE:
        return None
    found = _of(plan.grid, store.lines(store.all_beside(plan.output)))
    rows = written.write(plan.output, store.results(found))
    reasons = [line.refused for line in found.values() if line.refused]
    return Written(len(found), rows, len(reasons), min(reasons, default=""))


def _work(plan: Sweep, executor: Executor | None, advance: Callable[[Done], None]) -> None:
    keeper, refused = store.Keeper(plan.kept), ""
    every = plan.share == WHOLE and len(plan.points) == len(plan.grid.points)
    try:
        for result in workers.results(plan.points, executor):
            keeper.add(result)
            refused = refused or result.refused
            advance(result)
        if refused and every and not keeper.has_begun:
            raise InputError(f"no point can run, such as: {refused}", where=plan.grid.name)
        keeper.flush()
    finally:
        keeper.close()


def _of(grid: Grid, found: Mapping[str, store.Line]) -> dict[str, store.Line]:
    if lost := [point.key for point in grid.points if point.key not in found]:
        problem = f"{len(lost):,} points are gone that were kept, such as {lost[0]}"
        raise InputError(problem, where=grid.name, fix="somebody has taken them away: run it again")
    return {point.key: found[point.key] for point in grid.points}
