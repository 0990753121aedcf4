"""`odcsim audit`: a trainer's file or command before it runs, or beside its log: is it normal, and what to change."""

import argparse
from pathlib import Path
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import AUDIT
from odcsim.option import DATA, MACHINES, values_of
from odcsim.question import FIELDS

EXAMPLE = "odcsim audit sft.yaml --lengths lengths.csv --gpu h100 --devices 8 --write better.yaml"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="check a trainer's file, log or hang: normal, or what to change",
        description="Read a trainer's configuration as the trainer does (TRL, transformers, axolotl, LLaMA-Factory, "
        "verl, torchtitan, slime, NeMo-RL, prime-rl): what a step takes and whether it fits, why GPUs idle, what would "
        "end or hang it, and which of its lines to change. With --log: whether a run is as expected, and what explains "
        "it if not. With --hang: why it hangs. Exit status: 1 if it would not run.",
        examples=(EXAMPLE, "odcsim audit --hang dumps/"),
    )
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="the trainer's file or script, or in quotes the command that starts it",
    )
    groups = options.add_question(parser, AUDIT, needed=())
    data = groups[DATA]
    data.add_argument("--lengths", metavar="DATA", help="lengths of the samples: a file, a name or a spec")
    data.add_argument("--log", nargs="+", default=[], metavar="LOG", help="log of its steps, to hold against this")
    data.add_argument("--hang", metavar="DIR", help="dumps of PyTorch's Flight Recorder of a run that hangs")
    groups[MACHINES].add_argument("--write", dest="output", metavar="NEW", help="write the file with all changes there")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.set_defaults(run=_run, writes="config")


def _run(args: argparse.Namespace) -> int:
    from odcsim.decide.audit import Audit, audit, audited
    from odcsim.say import terminal
    from odcsim.support.numbers import counted
    from odcsim.support.outputs import write_text

    if args.config is None or args.hang is not None:
        found = audit(hang=args.hang or (), devices=args.devices)
    else:
        words = values_of(args, [name for name in FIELDS if hasattr(args, name)])
        found = audited(args.config, args.lengths, args.log, words)
    if args.json:
        options.print_json(found.as_json())
    else:
        terminal.show(found._answer())
    if args.output is not None and isinstance(found, Audit):
        write_text(Path(args.output), found.edited())
        print(f"{args.output}: with {counted(len(found.found), 'change')}")
    return int(not found.runs)
