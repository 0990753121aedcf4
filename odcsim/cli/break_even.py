"""`odcsim break-even`: where on-demand communication stops paying, one thing after the other changed."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import BREAK_EVEN
from odcsim.support.progress import progress

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
    options.add_question(parser, BREAK_EVEN)
    parser.add_argument("--json", action="store_true", help="print all points as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page with the curves")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.break_even import find_break_even
    from odcsim.say import break_even_words, terminal

    asked = options.read_question(args)
    with progress("changing", 6) as advance:
        result = find_break_even(asked, advance=advance)
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_break_even

        write_break_even(result, args.html)
    if args.json:
        options.print_json(result.as_json())
    else:
        terminal.show(break_even_words.answer(result))
