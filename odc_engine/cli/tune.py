"""`odc_engine tune`: the kernels timed under several launches."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        help="time the communication kernels on this GPU",
        description="Time the kernels on this GPU with several launch settings, beside a plain copy.",
        examples=("odc_engine tune -o tuned.json",),
    )
    parser.add_argument("-o", dest="output", required=True, metavar="FILE", help="the file to write (JSON)")
    parser.set_defaults(run=_run, writes="launches")


def _run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from odc_engine.measuring import tuning

    return tuning.tune(Path(args.output))
