"""`odc_engine run`: a schedule file is run for real, and the timeline written."""

import argparse
from typing import Any

from odc_engine.cli import options
from odcsim.recipe import flags


def add(commands: Any) -> None:
    parser = commands.add_parser("run", help="run a schedule file for real and write the timeline")
    options.add_job(parser, flags(engine=True))
    parser.add_argument(
        "--emulate-compute", action="store_true", help="wait the predicted seconds instead of computing"
    )
    parser.add_argument("--cluster", metavar="FILE", help="slow devices and sample_noise for emulated compute (TOML)")
    parser.add_argument("-o", dest="output", required=True, metavar="TIMELINE", help="the file to write (npz)")
    parser.set_defaults(run=_run, writes="archive")


def _run(args: argparse.Namespace) -> int:
    file, job = options.job_of(args)
    from odc_engine.runs.run import run

    return run(file, job, args.output)
