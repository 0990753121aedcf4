"""`odcsim balance`: write the schedules of one balancer to a file."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import BALANCE
from odcsim.support.command import Parser
from odcsim.support.numbers import counted
from odcsim.support.progress import progress

EXAMPLE = (
    "odcsim balance longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4 --max-tokens 64k "
    "--balancer lb-mini -o plan.jsonl"
)


def add(commands: Any) -> None:
    commands.add_parser(
        "balance",
        fill=_fill,
        help="assign samples to GPUs and microbatches: a schedule file",
        examples=(EXAMPLE,),
        description="Draw minibatches, assign their samples to GPUs and microbatches with one balancer, and write the "
        "schedules to a file for 'odcsim simulate' and 'odc_engine run'.",
    )


def _fill(parser: Parser) -> None:
    """Balancers import numpy, and nobody else's help should wait for it."""
    from odcsim.balance import BALANCERS

    options.add_question(parser, BALANCE)
    lines = [f"{b.name}{' (on-demand only)' if b.free_counts else ''}: {b.help}" for b in BALANCERS]
    names = [b.name for b in BALANCERS]
    parser.add_argument(
        "--balancer", required=True, choices=names, help="how samples are assigned; " + ". ".join(lines)
    )
    parser.add_argument("-o", dest="output", required=True, metavar="SCHEDULE", help="schedule file to write (JSONL)")
    parser.set_defaults(run=_run, writes="schedule")


def _run(args: argparse.Namespace) -> None:
    from odcsim import schedule
    from odcsim.decide.setting import plan
    from odcsim.reading.tally import in_places

    setting = options.setting_of(args)
    in_places(setting.trace, setting.trace.name)
    with progress("balancing", setting.minibatches) as advance:
        file = schedule.write(plan(setting, args.balancer, advance=advance), args.output)
    counts = [s.microbatches for s in file.schedules]
    least, most = min(map(min, counts)), max(map(max, counts))
    spread = f"{least}" if least == most else f"{least} to {most}"
    queued = [len(s.queue) for s in file.schedules]
    if most_queued := max(queued):
        least_queued = "" if min(queued) == most_queued else f"{min(queued)} to "
        spread += f" microbatches a device and {least_queued}{most_queued} in the queue"
    else:
        spread = ("" if least == most else f"{least} to ") + f"{counted(most, 'microbatch')} a device"
    print(f"{args.output}: {counted(len(file.schedules), 'minibatch')}, {spread}, digest {file.header.digest}")
    if args.truncate or args.drop_over:
        print(f"Lengths: {setting.trace.origin}.")
