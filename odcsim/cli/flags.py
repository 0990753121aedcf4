"""`odcsim flags`: the settings of another trainer for a row of a comparison or an advice."""

import argparse
from typing import Any

from odcsim.cli import options

NAMES = ("verl", "slime", "nemo-rl", "trl", "torchtitan", "axolotl", "llamafactory")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "flags",
        help="the flags and config lines of your trainer for a chosen row",
        description="Print what a row of 'odcsim advise --json' or 'odcsim compare --json' is called in a trainer that "
        "others wrote: flags, overrides or YAML, to copy. Lines that begin with # say what they rest on, and what they "
        "cannot say.",
    )
    parser.add_argument("trainer", choices=NAMES, help="who is to be told")
    parser.add_argument("rows", metavar="JSON", help="a file of such JSON, or - for stdin")
    parser.add_argument(
        "--row",
        type=options.whole,
        metavar="N",
        help="which row, from 1; default: an advice's first, or a comparison's fastest that fits and that the trainer "
        "runs",
    )
    parser.add_argument(
        "--rollouts", type=options.whole, default=1, metavar="N", help="samples of each prompt, for verl (1)"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from odcsim.handover.chosen import EXPECTED, read
    from odcsim.handover.trainers import TRAINERS, lines
    from odcsim.support.files import reading
    from odcsim.support.whole import read_stdin, read_text

    where = "stdin" if args.rows == "-" else args.rows
    with reading(args.rows, missing=EXPECTED, expected=EXPECTED):
        text = read_stdin() if args.rows == "-" else read_text(args.rows)
    trainer = TRAINERS[args.trainer]
    row = read(text, where, trainer.ways, args.row)
    row = replace(row, rollouts=args.rollouts)
    print(*lines(trainer, row), sep="\n")
