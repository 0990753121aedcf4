"""`odcsim flags`: the settings of another trainer for a row of a comparison or an advice."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.support.command import Parser

EXAMPLE = (
    "odcsim compare longalign --model Qwen/Qwen3-8B --gpu h100 --devices 8 --minibatch 4 --trainer trl --json "
    "| odcsim flags trl -"
)


def add(commands: Any) -> None:
    commands.add_parser(
        "flags",
        fill=_fill,
        help="print what starts a row in your trainer: a script, or a file",
        description="Print what starts one result row in your trainer: a script with its own flags or overrides, or "
        "its YAML file. Rows come from 'odcsim advise --trainer T --json', 'odcsim compare', 'odcsim rl' or 'odcsim "
        "diagnose'. Rows that the trainer cannot run are refused. Lines with # say what the others assume and what "
        "they cannot express.",
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
        help="samples per prompt, of lengths of rollouts in a comparison or an advice (1)",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.neighbours.settings import flags

    print(flags(args.trainer, args.rows, row=args.row, rollouts=args.rollouts))
