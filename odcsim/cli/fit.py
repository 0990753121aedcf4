"""`odcsim fit`: a profile from measurements, or from a log or profiler traces of a user's own training steps."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import FIT
from odcsim.option import DATA, MACHINES, STEP, values_of
from odcsim.program import SYNCS
from odcsim.question import FIELDS
from odcsim.recipe import recipe_words
from odcsim.support.command import rare

EXAMPLE = (
    "odcsim fit trainer_state.json --trace lengths.csv --model qwen3-8b --gpu h100 --devices 8 --global-batch 64 "
    "-o mine.json"
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="fit a cost profile to your own logs, traces or measurements",
        examples=(EXAMPLE,),
        description="Fit a profile that predictions use to one of: a step log (trainer_state.json, JSON lines, CSV of "
        "W&B or TensorBoard, metrics of verl and torchtitan) with the flags of its run; a CSV file with lengths "
        "(512;1024;77) and seconds of each microbatch of one GPU; torch.profiler traces of FSDP; measurements (JSON). "
        "Says what the fit does not explain.",
    )
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="step log, CSV, traces or measurements; traces: JSON or JSON.gz, measurements: JSON",
    )
    groups = options.add_question(
        parser, FIT, own=("trainer",), needed=(), seldom=("truncate", "minibatch", "minibatches")
    )
    groups[DATA].add_argument("--trace", metavar="TRACE", help="for a step log: the sequence lengths trained on")
    step = groups[STEP]
    step.add_argument("--trainer", metavar="T", help="the trainer that ran, such as trl")
    rare(step.add_argument("--sync", choices=SYNCS, help="sync of that run (the log's)"))
    rare(step.add_argument("--balancer", metavar="B", help="balancer of that run (the log's)"))
    options.add_rate(groups[MACHINES], "instead of a log: the throughput of all GPUs together")
    parser.add_argument(
        "--lengths", metavar="FILE", help="for traces: CSV of each microbatch; columns device, step, lengths"
    )
    parser.add_argument("-o", dest="output", required=True, metavar="PROFILE", help="profile file to write (JSON)")
    parser.set_defaults(run=_run, writes="profile")


def _run(args: argparse.Namespace) -> None:
    import sys

    from odcsim import profile
    from odcsim.decide.fitted import fitted
    from odcsim.support.numbers import counted

    if args.cutoff is not None and args.trace is not None:
        options.read_lengths(args, args.trace, cutoff=args.cutoff)
    words = values_of(args, (*FIELDS, "balancer")) | recipe_words(args)
    fit = fitted(words, args.sources, args.lengths, args.measured_tokens_per_second)
    profile.write(fit.profile, args.output)
    for line in fit.sentences():
        print(line)
    if not fit.good:
        count = counted(len(fit.unexplained), "measurement")
        print(f"odcsim fit: poor fit: it does not explain {count}", file=sys.stderr)
    print(f"{args.output}: {fit.profile.origin}")
