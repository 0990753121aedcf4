"""`odcsim diagnose`: what a run that exists loses, why, and which flag to set."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import DIAGNOSE
from odcsim.option import DATA, STEP, values_of
from odcsim.program import SYNCS
from odcsim.question import FIELDS
from odcsim.recipe import recipe_words
from odcsim.support.command import rare

EXAMPLE = "odcsim diagnose traces/ --model qwen3-8b --gpu h100 --trainer trl --price 2.5"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "diagnose",
        help="explain where a real run loses time: stragglers, idle time",
        examples=("odcsim diagnose slow-step", EXAMPLE),
        description="Split a run's steps into compute, waiting and transfers, name the stragglers and why, "
        "and predict what other settings would gain. Reads torch.profiler traces, files of odc_engine.watch, timelines "
        "of odc_engine, Parquet of StragglerAnalysis, and step logs with the flags of their run.",
    )
    parser.add_argument("sources", nargs="+", metavar="DIR|FILE", help="files of the run, or 'slow-step', which ships")
    groups = options.add_question(parser, DIAGNOSE, needed=(), seldom=("truncate", "minibatch"))
    groups[DATA].add_argument(
        "--lengths",
        metavar="FILE",
        help="CSV of each microbatch, or the watcher's files; columns device, step, lengths",
    )
    groups[DATA].add_argument("--trace", metavar="TRACE", help="for a step log: the sequence lengths trained on")
    step = groups[STEP]
    rare(step.add_argument("--sync", choices=SYNCS, help="for a step log: the sync it ran"))
    rare(step.add_argument("--balancer", metavar="B", help="for a step log: the balancer that assigned the samples"))
    parser.add_argument("--json", action="store_true", help="print all findings and rows as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page with figures")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.diagnosis.result import diagnosed
    from odcsim.support.progress import shares

    given = values_of(args, (*FIELDS, "balancer")) | recipe_words(args)
    with shares("reading") as advance:
        found = diagnosed(given, args.sources, args.lengths, advance=advance)
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_diagnosis

        write_diagnosis(found, args.html)
    if args.json:
        options.print_json(found.as_json())
        return
    from odcsim.say import diagnosis_words, terminal

    terminal.show(diagnosis_words.answer(found))
    if args.html is not None:
        print(f"\npage with pictures: {args.html}")
