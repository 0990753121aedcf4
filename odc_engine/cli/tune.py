"""`odc_engine tune`: the kernels timed under several launches."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser("tune", help="time the kernels on this GPU under several launches, against a copy")
    parser.add_argument("-o", dest="output", required=True, metavar="FILE", help="the file to write (JSON)")
    parser.set_defaults(run=_run, writes="JSON")


def _run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from odc_engine.measuring import tuning

    return tuning.tune(Path(args.output))
