"""`odc_engine verify`: a schedule's gradients held against one process."""

import argparse
from typing import Any

from odc_engine.cli import options


def add(commands: Any) -> None:
    parser = commands.add_parser("verify", help="hold a schedule's gradients against one process")
    options.add_job(parser)
    options.add_json(parser)
    parser.set_defaults(run=_run, emulate_compute=False, cluster=None, dtype="float32")


def _run(args: argparse.Namespace) -> int:
    file, job = options.job_of(args)
    from odc_engine.runs.verify import verify

    return verify(file, job, args.json)
