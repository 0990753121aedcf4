"""`odcsim check`: whether a plan hangs, runs out of its limit or shifts the loss, with an exit status for CI."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.question import FIELDS
from odcsim.recipe import CHOICES


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="whether a plan hangs or shifts the loss: schedules of ours and batches of other trainers",
        description="Hold minibatches against what hangs a run or shifts its loss. Exit status 1 where something is "
        "found that does, 0 where nothing is, 2 where the file is no plan.",
    )
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help="a schedule file; JSON of index lists, [device][microbatch][sample], with a list around several "
        "minibatches; batches in a row with --devices; a dataset with TRL's seq_lengths; - for stdin",
    )
    parser.add_argument("--lengths", metavar="FILE", help="lengths of the samples, whose rows the plan numbers")
    parser.add_argument("--column", metavar="C", help="the column of that file that holds the lengths")
    parser.add_argument("--skip-bad", action="store_true", help=FIELDS["skip_bad"].help)
    parser.add_argument(
        "--images", metavar="C", help="the column of that file that counts a sample's images, or says true or false"
    )
    parser.add_argument("--max-tokens", type=options.whole, default=0, metavar="T", help="limit of a microbatch")
    parser.add_argument("--devices", type=options.whole, default=0, metavar="N", help="batches in a row: dealt in turn")
    parser.add_argument("--accumulate", type=options.whole, default=1, metavar="M", help="batches of a device and step")
    parser.add_argument(
        "--sync", choices=CHOICES["sync"].values, help="(on-demand for its balancers' schedules, else collective)"
    )
    parser.add_argument("--strict", action="store_true", help="warnings, too, exit with 1")
    parser.add_argument("--json", action="store_true", help="print every finding as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from odcsim.checking.asking import check

    how = "lengths column skip_bad images max_tokens devices accumulate sync strict".split()
    found = check(args.plan, **{name: getattr(args, name) for name in how})
    options.tell_left_out(found.lengths)
    if args.json:
        options.print_json(found.as_json())
    else:
        print(*found.sentences(), sep="\n")
    return int(not found.ok)
