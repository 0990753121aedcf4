"""`odcsim fit`: a profile from measurements, or from a log or profiler traces of a user's own training steps."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import FIT
from odcsim.program import SYNCS
from odcsim.question import FIELDS, MACHINES, QUESTION, STEP
from odcsim.recipe_flags import chosen

EXAMPLE = (
    "odcsim fit trainer_state.json --trace lengths.csv --model qwen3-8b --gpu h100 --devices 8 --global-batch 64 "
    "-o mine.json"
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="a profile from a log of your own steps, from traces, or from measurements",
        example=EXAMPLE,
        description="Fit a profile to a log of steps (Hugging Face's trainer_state.json, JSON lines, CSV of W&B or "
        "TensorBoard, verl's and torchtitan's metrics) and the flags of the run; to a CSV file with the columns "
        "lengths (512;1024;77) and seconds, a row for each microbatch of one device; to PyTorch profiler traces of an "
        "FSDP run on GPUs; or to measurements (JSON). Says what the fit does not explain.",
    )
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="a log, or measurements in JSON, or traces (JSON, JSON.gz)"
    )
    groups = options.add_question(parser, without={*FIT.without, "trainer"}, needed=())
    groups[QUESTION].add_argument(
        "--trace", metavar="TRACE", help="of a log of steps: the lengths that were trained on"
    )
    groups[STEP].add_argument("--trainer", metavar="T", help="the trainer that ran, such as trl")
    groups[STEP].add_argument("--sync", choices=SYNCS, default=argparse.SUPPRESS, help="that ran; default: the log's")
    groups[STEP].add_argument("--balancer", metavar="B", help="that dealt the samples; default: the log's")
    options.add_rate(groups[MACHINES], "instead of a log: what the run reached on all devices together")
    parser.add_argument("--lengths", metavar="FILE", help="of traces: CSV with device, step and lengths per microbatch")
    parser.add_argument("-o", dest="output", required=True, metavar="PROFILE", help="the file to write (JSON)")
    parser.set_defaults(run=_run, writes="profile")


def _run(args: argparse.Namespace) -> None:
    import sys

    from odcsim import profile
    from odcsim.decide.fitted import fitted

    if args.cutoff is not None and args.trace is not None:
        options.tell_cutoff(options.loaded(args, args.trace), args.cutoff)
    every = [*FIELDS, "balancer"]
    given = {name: getattr(args, name) for name in every if getattr(args, name, None) is not None} | chosen(args)
    found = fitted(given, args.sources, args.lengths, args.measured_tokens_per_second)
    profile.write(found.profile, args.output)
    for line in found.sentences():
        print(line)
    if not found.good:
        count = len(found.unexplained)
        print(f"odcsim fit: this is no good fit: it does not explain {count} measurements", file=sys.stderr)
    print(f"{args.output}: {found.profile.origin}")
