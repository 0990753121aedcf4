"""`odcsim flags`: the settings of another trainer for a row of a comparison or an advice."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.support.command import Parser


def add(commands: Any) -> None:
    commands.add_parser(
        "flags",
        fill=_fill,
        help="the flags and config lines of your trainer for a chosen row",
        description="Print what a row of 'odcsim advise --trainer T --json', and so of 'odcsim compare' and 'odcsim "
        "diagnose', is called there: flags, overrides or YAML, to copy, of what was priced. Rows that the trainer does "
        "not run are refused. Lines that begin with # say what the others rest on, and what they cannot say.",
    )


def _fill(parser: Parser) -> None:
    from odcsim.neighbours import TRAINERS

    parser.add_argument("trainer", choices=list(TRAINERS), help="who is to be told")
    parser.add_argument("rows", metavar="JSON", help="a file of such JSON, or - for stdin")
    parser.add_argument(
        "--row",
        type=options.whole,
        metavar="N",
        help="which row, from 1; default: of those that the trainer runs an advice's first, or a comparison's fastest "
        "that fits",
    )
    parser.add_argument(
        "--rollouts", type=options.whole, default=1, metavar="N", help="samples of each prompt, for verl (1)"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.neighbours.asking import flags

    print(flags(args.trainer, args.rows, row=args.row, rollouts=args.rollouts))
