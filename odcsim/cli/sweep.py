"""`odcsim sweep`: many comparisons from one grid, over processes, machines and interruptions."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcsim.cli import options

if TYPE_CHECKING:
    from odcsim.decide.sweep import Rows

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

    from odcsim.decide.grid import read_grid
    from odcsim.decide.sweep import WHOLE, Sweep, dask, processes
    from odcsim.support.numbers import counted
    from odcsim.support.printing import printable
    from odcsim.support.progress import progress

    sweep = Sweep(read_grid(args.grid), Path(args.output), args.shard)
    points = sweep.rest()
    for words in sweep.grid.left_out:
        print(printable(f"odcsim: {words}"), file=sys.stderr)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = max(1, min(args.jobs or cores, len(points)))
    spoken = time.monotonic()

    def show(rows: "Rows") -> None:
        """A name now and then, so that a log tells how far it is, and not each of a thousand points."""
        nonlocal spoken
        due = time.monotonic() - spoken > SILENT
        spoken = time.monotonic() if due else spoken
        advance(f"{rows[0]['model']} on {rows[0]['devices']} devices" if due else "")

    try:
        workers = dask(args.dask) if args.dask is not None and points else processes(jobs)
        with workers as executor, progress("odcsim sweep", len(points)) as advance:
            sweep.run(points, executor, show)
    except BrokenExecutor:
        kept = f"what is done is kept in {sweep.path}: run it again, with fewer --jobs"
        print(f"odcsim: error: a worker has ended (too little memory?); {kept}", file=sys.stderr)
        return 1
    every, (number, of) = len(sweep.grid.points), sweep.share
    if sweep.share != WHOLE:
        print(f"share {number} of {of}: {len(sweep.points):,} of {every:,} points, in {sweep.path}")
        print(f"when all shares are done: odcsim sweep {sweep.grid.name} -o {sweep.output}")
        return 0
    lines = sweep.write()
    print(f"{counted(every, 'point')}, {sum(line.rows for line in lines):,} rows: {sweep.output}")
    if refused := [line.refused for line in lines if line.refused]:
        print(f"odcsim: {len(refused):,} of them cannot run, such as: {min(refused)}", file=sys.stderr)
    return 0


def _shard(text: str) -> tuple[int, int]:
    number, slash, of = text.partition("/")
    digits = slash and all(part.isascii() and part.isdecimal() and len(part) < 8 for part in (number, of))
    if not digits or not 1 <= int(number) <= int(of):
        raise argparse.ArgumentTypeError(f"'{text}' is not a part of a sweep, such as 2/8: the second of eight")
    return int(number), int(of)
