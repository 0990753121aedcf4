"""`odcsim break-even`: where on-demand communication stops paying, one thing after the other changed."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.decide.words import BREAK_EVEN
from odcsim.support.progress import progress

if TYPE_CHECKING:
    from odcsim.decide.break_even import Curve

EXAMPLE = "odcsim break-even azure-chat --model qwen2.5-7b --gpu h100 --devices 8 --minibatch 8 --max-tokens 16k"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "break-even",
        help="find where on-demand communication stops paying off",
        examples=(EXAMPLE,),
        description="Predict the speedup of on-demand communication over the best collective row while one thing "
        "changes at a time: network, GPUs, model, minibatch, lengths, fixed cost. Also says what a balancer with wrong "
        "sample weights costs.",
    )
    options.add_question(parser, without=BREAK_EVEN.without)
    parser.add_argument("--json", action="store_true", help="print all points as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page with the curves")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.break_even_asked import changed

    asked = options.asked(args)
    with progress("changing", 6) as advance:
        found = changed(asked, advance=advance)
    setting, limited, made, ways_out = found.setting, found.limited, found.curves, found.ways_out
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_break_even

        write_break_even(setting, made, found.regrets, args.html, ways_out, limited=limited)
    if args.json:
        options.print_json(found.as_json())
        return
    from odcsim.decide import break_even_words as words

    print(*[words.answer(made), *([words.misfit(ways_out)] if ways_out else [])], sep="\n")
    print(f"\n{words.question(setting, limited=limited)}\n")
    for curve in made:
        print(*_table(curve), sep="\n")
        print(f"{words.sentence(curve)}\n")
    print(*found.notes(), sep="\n")
    if args.truncate or args.drop_over:
        print(f"Lengths: {setting.trace.origin}.")


def _table(curve: "Curve") -> list[str]:
    from odcsim.support import tables

    head = f"{curve.name}, {curve.unit}" if curve.unit else curve.name
    cells = [[s.label for s in curve.spots], ["-" if s.lead is None else f"{s.lead:.2f}" for s in curve.spots]]
    widths = [-32, *[7] * len(curve.spots)][: len(curve.spots) + 1]
    return tables.lines([[head, *cells[0]], ["  on-demand speedup", *cells[1]]], widths)
