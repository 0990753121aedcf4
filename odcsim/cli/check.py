"""`odcsim check`: whether a plan hangs, runs out of its limit or shifts the loss, with an exit status for CI."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.option import LENGTH
from odcsim.question import FIELDS
from odcsim.recipe import CHOICES


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="check a schedule for hangs, long microbatches, loss shifts",
        description="Check minibatches, of odcsim or of another trainer, for what hangs a run or shifts its loss. Exit "
        "status: 0 if nothing is found, 1 if something is, 2 if the file is no plan.",
        examples=("odcsim check plan.jsonl", "odcsim check batches.json --lengths lengths.csv --max-tokens 16k"),
    )
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help="schedule file, or batches of another trainer; JSON of sample indices, [device][microbatch][sample], in a "
        "list if there are several minibatches; batches in a row (with --devices); a dataset with TRL's seq_lengths; "
        "- for stdin",
    )
    parser.add_argument("--lengths", metavar="FILE", help="sequence lengths, one row for each sample of the plan")
    parser.add_argument("--column", metavar="C", help="column of that file with the lengths")
    parser.add_argument("--skip-bad", action="store_true", help=FIELDS["skip_bad"].help)
    parser.add_argument(
        "--images", metavar="C", help="column of that file with the images of a sample; a count, or true or false"
    )
    parser.add_argument(
        "--max-tokens", type=LENGTH.from_text, default=0, metavar="T", help="token limit of a microbatch"
    )
    parser.add_argument(
        "--devices", type=options.whole, default=0, metavar="N", help="GPUs that take batches in a row in turn"
    )
    parser.add_argument(
        "--accumulate",
        type=options.whole,
        default=1,
        metavar="M",
        help="batches per GPU and step: gradient accumulation (1)",
    )
    parser.add_argument(
        "--sync",
        choices=CHOICES["sync"].values,
        help="sync to check for; on-demand for schedules of on-demand balancers, else collective",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings, too")
    parser.add_argument("--json", action="store_true", help="print all findings as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from odcsim.checking.plan_check import check

    how = "lengths column skip_bad images max_tokens devices accumulate sync strict".split()
    findings = check(args.plan, **{name: getattr(args, name) for name in how})
    options.tell_lengths(findings.lengths)
    if args.json:
        options.print_json(findings.as_json())
    else:
        print(*findings.sentences(), sep="\n")
    return int(not findings.ok)
