"""`odcsim sweep`: many comparisons from one grid, over processes, machines and interruptions."""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcsim.cli import options

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from odcsim.decide.sweeps.sweeping import Sweep, Written
    from odcsim.decide.sweeps.work import Done

SILENT = 10.0  # seconds between two lines about how far it is, where no bar can be


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="run compare over a grid of settings, into one table",
        description="Run 'odcsim compare' at every point of a grid, on processes or machines. Finished points are "
        "kept beside the output: an interrupted sweep continues where it stopped, and points that another grid has "
        "done are not repeated.",
        examples=("odcsim sweep grid.toml -o points.parquet",),
    )
    parser.add_argument("grid", metavar="GRID", help="TOML file: options of compare, each with a value or a list")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="table to write: FILE.parquet, .csv or .jsonl"
    )
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="run only part I of N, such as 2/8")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=options.whole, metavar="N", help="processes (one per CPU core)")
    where.add_argument("--dask", metavar="ADDRESS", help="address of a Dask scheduler whose workers run the points")
    parser.set_defaults(run=_run, writes="points")


def _run(args: argparse.Namespace) -> int:
    from concurrent.futures import BrokenExecutor

    from odcsim.decide.sweeps.grid import grid_of
    from odcsim.decide.sweeps.sweeping import planned, run
    from odcsim.support.printing import printable
    from odcsim.support.progress import progress

    plan = planned(grid_of(args.grid), Path(args.output), args.shard)
    for words in plan.grid.left_out:
        print(printable(f"odcsim: {words}"), file=sys.stderr)
    try:
        with _workers(args, plan) as executor, progress("odcsim sweep", len(plan.points)) as advance:
            told = run(plan, executor, _advancing(advance))
    except BrokenExecutor:
        print(f"odcsim: error: a worker has ended (too little memory?); {_kept(plan)}", file=sys.stderr)
        return 1
    _tell(told, plan.output) if told else _tell_share(plan)
    return 0


def _workers(args: argparse.Namespace, plan: "Sweep") -> "AbstractContextManager[Executor | None]":
    from odcsim.decide.sweeps import workers

    if args.dask is not None and plan.points:
        return workers.dask(args.dask)
    return workers.processes(max(1, min(args.jobs or workers.processors(), len(plan.points))))


def _advancing(advance: Callable[[str], None]) -> "Callable[[Done], None]":
    """A name now and then, so that a log tells how far it is, and not each of a thousand points."""
    told = time.monotonic()

    def done(result: "Done") -> None:
        nonlocal told
        due = time.monotonic() - told > SILENT
        told = time.monotonic() if due else told
        row = result.rows[0]
        advance(f"{row['model']} on {row['devices']} devices" if due else "")

    return done


def _tell(told: "Written", output: Path) -> None:
    print(f"{told.points:,} point{'' if told.points == 1 else 's'}, {told.rows:,} rows: {output}")
    if told.refused:
        print(f"odcsim: {told.refused:,} of them cannot run, such as: {told.reason}", file=sys.stderr)


def _tell_share(plan: "Sweep") -> None:
    (number, of), every = plan.share, len(plan.grid.points)
    mine = len(plan.grid.share(number, of))
    print(f"share {number} of {of}: {mine:,} of {every:,} points, in {plan.kept}")
    print(f"when all shares are done: odcsim sweep {plan.grid.name} -o {plan.output}")


def _kept(plan: "Sweep") -> str:
    return f"what is done is kept in {plan.kept}: run it again, with fewer --jobs"


def _shard(text: str) -> tuple[int, int]:
    number, slash, of = text.partition("/")
    digits = slash and all(part.isascii() and part.isdecimal() and len(part) < 8 for part in (number, of))
    if not digits or not 1 <= int(number) <= int(of):
        raise argparse.ArgumentTypeError(f"'{text}' is not a part of a sweep, such as 2/8: the second of eight")
    return int(number), int(of)
