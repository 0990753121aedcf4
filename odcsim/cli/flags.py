"""`odcsim flags`: the settings of another trainer for a row of a comparison or an advice."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.support.command import Parser

EXAMPLE = (
    "odcsim compare longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4 --trainer verl --json "
    "| odcsim flags verl -"
)


def add(commands: Any) -> None:
    commands.add_parser(
        "flags",
        fill=_fill,
        help="print a row's settings as your trainer's own flags",
        description="Print the settings of one result row as your trainer's flags, overrides or YAML. Rows come from "
        "'odcsim advise --trainer T --json', 'odcsim compare' or 'odcsim diagnose'. Rows that the trainer cannot run "
        "are refused. Lines with # say what the others assume and what they cannot express.",
        examples=(EXAMPLE,),
    )


def _fill(parser: Parser) -> None:
    from odcsim.neighbours import TRAINERS

    parser.add_argument("trainer", choices=list(TRAINERS), help="trainer to print flags for")
    parser.add_argument("rows", metavar="JSON", help="file of such rows, or - for stdin")
    parser.add_argument(
        "--row",
        type=options.whole,
        metavar="N",
        help="number of the row, from 1; default: of the rows that the trainer runs, the first of an advice, or the "
        "fastest of a comparison that fits",
    )
    parser.add_argument(
        "--rollouts",
        type=options.whole,
        default=1,
        metavar="N",
        help="samples per prompt, of reinforcement learning (1)",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.neighbours.settings import flags

    print(flags(args.trainer, args.rows, row=args.row, rollouts=args.rollouts))
