"""`odcsim simulate`: run a schedule file under one sync and write the timeline."""

import argparse
from typing import Any

from odcsim.cli import options


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="run a schedule file under one sync and write the timeline",
        description="Predict when every device does what, for the schedules in a file under one sync.",
    )
    parser.add_argument("schedule", metavar="SCHEDULE", help="a file that 'odcsim balance' wrote")
    parser.add_argument("--sync", required=True, choices=options.SYNCS)
    parser.add_argument("--model", metavar="M", help="needed only for a config.json; must be the schedule's model")
    options.add_hardware(parser)
    parser.add_argument("--executor", choices=options.EXECUTORS, default="des")
    parser.add_argument("--json", action="store_true", help="print the row as JSON")
    parser.add_argument("-o", dest="output", required=True, metavar="TIMELINE", help="the file to write (npz)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from odcsim import schedule, timeline
    from odcsim.cli import table
    from odcsim.errors import InputError
    from odcsim.executors.simulation import Simulation, simulate
    from odcsim.questions.setting import cost_of
    from odcsim.results import summary
    from odcsim.results.metrics import usage

    file = schedule.read(args.schedule)
    header = file.header
    hardware = args.gpu, args.profile, header.devices, args.devices_per_node, args.cluster, args.sharding
    cost = cost_of(args.model or header.model, *hardware, recompute=args.recompute)
    if cost.model.name != header.model:
        raise InputError(
            f"--model {cost.model.name} is not the schedule's {header.model}",
            where=args.schedule,
            fix="leave --model out, or balance for this model",
        )
    result = simulate(file, Simulation(cost, args.sync, args.executor, seed=header.seed))
    timeline.write(result, args.output)
    measured = summary.Measured(
        header.balancer, args.sync, usage(result), result.samples, result.tokens, header.devices
    )
    row = replace(summary.row(measured, cost.profile.low, cost.profile.high, None), sharding=cost.sharded)
    if args.json:
        options.print_json(row.as_json())
    else:
        table.show([row])
        print(f"{result.about.fidelity}: {cost.profile.origin}\n{args.output}: {row.minibatches} minibatches")
