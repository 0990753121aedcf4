"""`odc_engine profile`: this machine is measured, and a profile fitted to it."""

import argparse
import sys
from typing import Any

from odc_engine import backends
from odc_engine.cli import options
from odcsim.option import LENGTH
from odcsim.recipe import add_recipe, recipe_of, recipe_words


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="measure this machine and write a cost profile for odcsim",
        description="Measure compute and communication of this machine and fit a cost profile for odcsim.",
        examples=("odc_engine profile --model tiny --devices 2 --quick -o me.profile",),
    )
    parser.add_argument("--model", default="tiny", metavar="M", help="model of 'odcsim catalog list' (tiny)")
    told = "numbers of ranks; compute is measured on the first (2)"
    parser.add_argument("--devices", type=options.numbers, default=(2,), metavar="N,N", help=told)
    options.add_backend(parser, backends.names())
    options.add_device(parser)
    add_recipe(parser, ("dtype",))
    parser.add_argument(
        "--max-tokens", type=LENGTH.from_text, default=1024, metavar="T", help="tokens of the largest microbatch (1024)"
    )
    parser.add_argument("--quick", action="store_true", help="measure for about a minute, less exactly")
    parser.add_argument("-o", dest="output", required=True, metavar="PROFILE", help="profile file to write (JSON)")
    parser.set_defaults(run=_run, writes="profile")


def _run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from odc_engine.measuring.survey import Survey
    from odcsim import catalog

    model, output = catalog.model(args.model), Path(args.output)
    survey = Survey(
        model=model,
        devices=args.devices,
        backend=backends.chosen(args.backend, args.device),
        most=args.max_tokens,
        quick=args.quick,
        recipe=recipe_of(recipe_words(args)),
    )
    survey.check()
    options.need_torch()
    from odc_engine.measuring import beside_catalog, own, profile

    try:
        report = profile.measured(survey, output)
    except KeyboardInterrupt:
        kept = "what is measured is kept, the same command goes on"
        print(f"odc_engine: stopped; {kept} ({profile.partial(output)})", file=sys.stderr)
        return 130
    beside = beside_catalog.line(report.profile, model, survey.backend.device)
    for line in (*report.sentences(), *own.lines(report.profile, model), beside):
        print(line)
    if not report.good:
        print(f"odc_engine: the fit does not explain {len(report.unexplained)} measurements", file=sys.stderr)
    print(f"{args.output}: {report.profile.origin}")
    return 0
