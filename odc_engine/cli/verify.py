"""`odc_engine verify`: a schedule's gradients held against one process."""

import argparse
from typing import Any

from odc_engine.cli import options
from odcsim.recipe import flags

UNASKED = "dtype"  # of fp32 alone gradients differ so little that a mistake shows


def add(commands: Any) -> None:
    parser = commands.add_parser("verify", help="hold a schedule's gradients against one process")
    options.add_job(parser, [name for name in flags(engine=True) if name != UNASKED])
    options.add_json(parser)
    parser.set_defaults(run=_run, emulate_compute=False, cluster=None)


def _run(args: argparse.Namespace) -> int:
    file, job = options.job_of(args)
    from odc_engine.runs.verify import verify

    return verify(file, job, args.json)
