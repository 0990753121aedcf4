"""`odcsim advise`: from a dataset to what to rent for how long, how to run it, and what it costs."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.decide.words import ADVISE
from odcsim.question import MACHINES, QUESTION
from odcsim.support.numbers import TIMES, human, listed

if TYPE_CHECKING:
    from odcsim.decide.advice.wish import Wish

EXAMPLE = (
    "odcsim advise sharegpt --drop-over 32k --model qwen3-8b --gpus h100,a100 --devices 8,16 --global-batch 256 "
    "--price h100=2.5,a100=1.3"
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "advise",
        help="what to rent for a whole training run, how long it takes and what it costs",
        example=EXAMPLE,
        description="Search what GPUs, how many of them and which way to run come to in hours and dollars, and say "
        "which to rent. Sync, balancer, token limit, sharding and recompute are chosen for each, of what fits memory.",
    )
    groups = options.add_question(parser, without=ADVISE.without, recipe=ADVISE.recipe, **ADVISE.usual)
    asked, machines = groups[QUESTION], groups[MACHINES]
    machines.add_argument("--gpus", type=listed, required=True, metavar="G,G", help="kinds to rent: h100,a100")
    machines.add_argument("--devices", type=_numbers, required=True, metavar="N,N", help="how many of them: 8,16,64")
    machines.add_argument(
        "--price", type=listed, default=(), metavar="G=P,G=P", help="of a GPU-hour: h100=2.5,a100=1.3"
    )
    asked.add_argument("--deadline", type=_time, metavar="T", help="such as 12h or 90min")
    asked.add_argument("--budget", type=options.amount, metavar="P", help="dollars")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print every figure of every row as CSV")
    form.add_argument("--json", action="store_true", help="print what was asked and every row as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with a picture of time and money, too")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.cli import advice_table
    from odcsim.decide.advice.offers import advise
    from odcsim.support.progress import progress

    wish = _wish(args)
    with progress("searching", len(wish.gpus) * len(wish.devices)) as advance:
        advice = advise(wish, advance=lambda _: advance())
    if args.html is not None:
        from odcsim.show.pages.advice_page import write_advice

        write_advice(advice, args.html)
    if args.json:
        options.print_json(advice.as_json())
    elif args.csv:
        from odcsim.cli import csvs

        csvs.print_lines(advice.as_json()["rows"])
    else:
        advice_table.show(advice)


def _wish(args: argparse.Namespace) -> "Wish":
    from odcsim.decide.advice.asking import wished

    question = options.asked(args, devices=1, price=None)
    return wished(question, args.gpus, args.devices, args.price, args.deadline, args.budget)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(options.whole(word) for word in listed(text))


def _time(text: str) -> float:
    value = human(text, TIMES)
    if not value:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time, such as 12h or 90min")
    return float(value)
