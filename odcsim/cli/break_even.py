"""`odcsim break-even`: where on-demand communication stops paying, one thing after the other changed."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.command import add_recipe, chosen
from odcsim.progress import progress
from odcsim.recipe import USUAL

if TYPE_CHECKING:
    from odcsim.questions.break_even import Curve

EXAMPLE = "odcsim break-even azure-chat --model qwen2.5-7b --gpu h100 --devices 8 --minibatch 8 --max-tokens 16k"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "break-even",
        help="where on-demand stops paying: network, devices, model, minibatch, lengths, fixed cost",
        example=EXAMPLE,
        description="Tell how the lead of on-demand over the best without it moves with one thing at a time, and what "
        "balancing by wrong weights costs.",
    )
    options.add_trace(parser)
    parser.add_argument("--model", required=True, metavar="M", help="a name ('odcsim catalog list') or a config.json")
    options.add_hardware(parser)
    add_recipe(parser, USUAL.inputs())
    parser.add_argument("--devices", type=options.whole, required=True, metavar="N", help="GPUs that share a minibatch")
    parser.add_argument("--minibatch", type=options.whole, required=True, metavar="K", help="samples per device, step")
    parser.add_argument("--max-tokens", type=options.whole, metavar="T", help="default: the best of each point")
    parser.add_argument("--seed", type=options.seed, default=0, metavar="S", help="of the shuffle (0)")
    parser.add_argument("--json", action="store_true", help="print every point as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with the curves, too")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.questions.break_even import Query, curves
    from odcsim.questions.limit import chosen as chosen_limit
    from odcsim.questions.remedies import misfits, remedies
    from odcsim.questions.weights import regrets

    names = ("gpu", "profile", "devices", "minibatch", "max_tokens", "seed", "devices_per_node", "cluster")
    asked = Query(options.trace_of(args), args.model, {n: getattr(args, n) for n in names} | chosen(args))
    setting = asked.setting()
    with progress("changing", 6) as advance:
        made = list(curves(asked, advance=advance))
    setting = setting if args.max_tokens else chosen_limit(setting)
    ways_out = remedies(setting) if misfits(setting) else []
    wrong = [] if ways_out else regrets(setting)
    if args.html is not None:
        from odcsim.pages.break_even_page import write_break_even

        write_break_even(setting, made, wrong, args.html, ways_out)
    if args.json:
        kinds = [{**asdict(c), "crossings": c.crossings} for c in made]
        told = {"curves": kinds, "regrets": [asdict(r) for r in wrong], "ways_out": ways_out}
        options.print_json({"schema": 1, **told})
        return
    from odcsim.questions import break_even_words as words

    print(words.question(setting))
    for curve in made:
        print(*_table(curve), sep="\n")
        print(f"{words.sentence(curve)}\n")
    if ways_out:
        print(words.misfit(ways_out))
    print(*words.regret_lines(wrong), sep="\n")


def _table(curve: "Curve") -> list[str]:
    from odcsim import tables

    head = f"{curve.name}, {curve.unit}" if curve.unit else curve.name
    cells = [[s.label for s in curve.spots], ["-" if s.lead is None else f"{s.lead:.2f}" for s in curve.spots]]
    widths = [-32, *[7] * len(curve.spots)][: len(curve.spots) + 1]
    return tables.lines([[head, *cells[0]], ["  lead of on-demand", *cells[1]]], widths)
