"""`odcsim merge`: what the shares of a sweep have kept becomes one table."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "merge",
        help="join the parts of a sweep that ran on several machines",
        description="Join the points that sweeps have kept, finished or not, into one table. Each point is there once.",
        examples=("odcsim merge points.csv.*.points -o points.csv",),
    )
    parser.add_argument("sources", nargs="+", metavar="POINTS", help="FILE.points files beside the output of a sweep")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="table to write: FILE.parquet, .csv or .jsonl"
    )
    parser.set_defaults(run=_run, writes="points")


def _run(args: argparse.Namespace) -> None:
    from odcsim.cli.sweep import tell
    from odcsim.decide.sweeps.sweeping import merge

    tell(merge([Path(source) for source in args.sources], Path(args.output)), Path(args.output))
