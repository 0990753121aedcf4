"""`odc_engine run`: a schedule file is run for real, and the timeline written."""

import argparse
from typing import Any

from odc_engine.cli import options
from odcsim.recipe import flags
from odcsim.support.command import rare


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a schedule file for real, and write the timeline",
        description="Train the minibatches of a schedule file for real, under one sync, and write the timeline.",
        examples=("odc_engine run plan.jsonl --sync on-demand -o measured.npz",),
    )
    options.add_job(parser, flags(engine=True))
    parser.add_argument(
        "--emulate-compute", action="store_true", help="wait for the predicted time instead of computing"
    )
    cluster = "TOML file with slow devices and sample_noise for emulated compute"
    rare(parser.add_argument("--cluster", metavar="FILE", help=cluster))
    parser.add_argument("-o", dest="output", required=True, metavar="TIMELINE", help="timeline file to write (npz)")
    parser.set_defaults(run=_run, writes="timeline")


def _run(args: argparse.Namespace) -> int:
    file, job = options.job_of(args)
    from odc_engine.runs.run import run

    return run(file, job, args.output)
