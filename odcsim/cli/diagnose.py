"""`odcsim diagnose`: what a run that exists loses, why, and which flag to set."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import DIAGNOSE
from odcsim.program import SYNCS
from odcsim.question import FIELDS, QUESTION, STEP
from odcsim.recipe_flags import chosen

EXAMPLE = "odcsim diagnose traces/ --model qwen3-8b --gpu h100 --trainer trl --price 2.5"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "diagnose",
        help="where the steps of a run that exists go, why ranks wait, and what to set",
        example=EXAMPLE,
        description="Say what of a run's step is compute, waiting and transfers, which ranks and microbatches the "
        "others wait for and why, and what other ways to run the same samples would bring. Reads profiler traces of "
        "some or all ranks, files of odc_engine.watch, timelines of odc_engine, Parquet of StragglerAnalysis, and logs "
        "of steps with the flags of their run.",
    )
    parser.add_argument(
        "sources", nargs="+", metavar="DIR|FILE", help="what the run wrote down; try 'slow-step', which ships"
    )
    groups = options.add_question(parser, without=DIAGNOSE.without, needed=(), **DIAGNOSE.usual)
    groups[QUESTION].add_argument(
        "--lengths", metavar="FILE", help="CSV with device, step and lengths of each microbatch, or the watcher's files"
    )
    groups[QUESTION].add_argument(
        "--trace", metavar="TRACE", help="of a log of steps: the lengths that were trained on"
    )
    groups[STEP].add_argument("--sync", choices=SYNCS, default=argparse.SUPPRESS, help="of a log: that ran")
    groups[STEP].add_argument("--balancer", metavar="B", help="of a log: that dealt the samples")
    parser.add_argument("--json", action="store_true", help="print all that was found, and a row for each way, as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures, too")
    parser.hide({"truncate", "minibatch", "sync", "balancer"})
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.diagnosis.asking import diagnosed
    from odcsim.support.progress import shares

    given = {
        name: getattr(args, name) for name in (*FIELDS, "balancer") if getattr(args, name, None) is not None
    } | chosen(args)
    with shares("reading") as advance:
        found = diagnosed(given, args.sources, args.lengths, advance=advance)
    if args.html is not None:
        from odcsim.show.pages.diagnosis_page import write_diagnosis

        write_diagnosis(found, args.html)
    if args.json:
        options.print_json(found.as_json())
        return
    from odcsim.cli import diagnosis_table

    diagnosis_table.show(found)
    if args.html is not None:
        print(f"\npage with pictures: {args.html}")
