"""`odcsim simulate`: run a schedule file under one sync and write the timeline."""

import argparse
from typing import Any

from odcsim.answer import AnswerTable
from odcsim.cli import options
from odcsim.recipe import add_recipe, flags, recipe_of, recipe_words
from odcsim.support.command import rare

EXCHANGE = (
    "Nodes exchange once, behind the last microbatch, as the engine's do. 'odcsim compare' has them exchange layer by "
    "layer, as FSDP2's own do."
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="simulate a schedule file, and write the timeline",
        description="Predict what each GPU does at every moment of a schedule file, under one sync, and write the "
        "timeline.",
        examples=("odcsim simulate plan.jsonl --sync on-demand --gpu a100 -o run.npz",),
    )
    parser.add_argument("schedule", metavar="SCHEDULE", help="schedule file of 'odcsim balance'")
    rare(parser.add_argument("--model", metavar="M", help="config.json of the schedule's model, if it has no name"))
    options.add_fields(parser, ("gpu", "profile", "devices_per_node", "cluster"))
    add_recipe(parser, flags())
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("-o", dest="output", required=True, metavar="TIMELINE", help="timeline file to write (npz)")
    parser.set_defaults(run=_run, writes="timeline")


def _run(args: argparse.Namespace) -> None:
    from odcsim import schedule, timeline
    from odcsim.decide.evaluate import of_file
    from odcsim.decide.setting import cost_of
    from odcsim.decide.sharding import of_schedules
    from odcsim.decide.unmeasured import run_of_schedules, widen_cost
    from odcsim.errors import InputError
    from odcsim.executors.simulation import simulate
    from odcsim.results.metrics import usage
    from odcsim.say import row_words, terminal

    file = schedule.read(args.schedule)
    header = file.header
    recipe = recipe_of(recipe_words(args))
    cost = cost_of(
        args.model or header.model,
        args.gpu,
        args.profile,
        devices=header.devices * recipe.context,
        devices_per_node=args.devices_per_node,
        cluster=args.cluster,
        recipe=recipe,
    )
    if cost.model.name != header.model:
        raise InputError(
            f"--model {cost.model.name} is not the schedule's {header.model}",
            where=args.schedule,
            fix="leave --model out, or balance for this model",
        )
    cost, why = of_schedules(cost, file.schedules, header.max_tokens)
    longest = max(int(one.sizes.max()) for one in file.schedules)
    cost = widen_cost(cost, run_of_schedules(cost, file.schedules), longest)
    result = simulate(file, cost, seed=header.seed)
    timeline.write(result, args.output)
    row = of_file(file, cost, usage(result))
    if args.json:
        options.print_json(row.as_json())
    else:
        head, cells = row_words.table([row], row_words.WIDE)
        print(*terminal.table_lines(AnswerTable(head, cells, names=2)), sep="\n")
        if why:
            print(f"Not varied: {row.recipe.sharding} sharding ({why}).")
        if cost.ran.sharding == "hybrid" and not row.one_sided:
            print(EXCHANGE)
        print(f"{result.about.fidelity}: {cost.profile.origin}\n{args.output}: {row.minibatches} minibatches")
