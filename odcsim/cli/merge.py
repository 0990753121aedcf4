"""`odcsim merge`: what the shares of a sweep have kept becomes one table."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "merge",
        help="the shares of a sweep as one table",
        description="Put together what sweeps have kept, finished or not: each point once, in the order of the table.",
    )
    parser.add_argument("sources", nargs="+", metavar="POINTS", help="FILE.points beside the output of a sweep")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="FILE.parquet, FILE.csv or FILE.jsonl")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.cli.sweep import tell
    from odcsim.decide.sweeps.sweeping import merge

    tell(merge([Path(source) for source in args.sources], Path(args.output)), Path(args.output))
